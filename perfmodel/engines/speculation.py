"""What ``speculative`` says: method, drafts a step, how often they are accepted, and who makes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

from perfmodel.costs.speculative import chance_of_length, tokens_by_position
from perfmodel.errors import BadInput, UnknownName, shown

# Words of vLLM (SpeculativeConfig.method), SGLang (--speculative-algorithm) and TensorRT-LLM (decoding_type), by what
# makes the drafts. A word that ends in mtp is a model's own layers.
FAMILIES = {
    "mtp": ("mtp", "nextn"),                                    # the model's own layers for multi-token prediction
    "eagle": ("eagle", "eagle3", "eagle3.1", "frozen_kv_mtp"),  # a head of one layer
    "block": ("dflash", "dflash2", "dspark"),                   # a few layers that draft all tokens in one pass
    "heads": ("medusa", "mlp_speculator"),                      # a small head a position
    "draft": ("draft_model", "draft", "draft_target", "standalone"),
    "lookup": ("ngram", "ngram_gpu", "suffix", "user_provided", "custom_class", "extract_hidden_states"),
}
METHODS = {word: family for family, words in FAMILIES.items() for word in words}
NOTHING = ("", "off", "none")
MOST = 64               # drafts a step
ASSUMED = 0.65          # chance of each draft where nobody states it: Eagle3 on Kimi K2.6 accepted 0.65 of first drafts
ASSUMED_SD = 0.25       # of the logarithm of the tokens a step then; public accept lengths of 3 drafts: 1.6 to 3.3


@dataclass(frozen=True, slots=True)
class Speculation:
    """Drafts of one step, and the share of steps in which each and all before it are accepted."""

    method: str
    family: str
    drafts: int
    accepted: tuple[float, ...]
    stated: bool                # whether somebody said how often drafts are accepted
    model: str | None = None    # that drafts, where it is one of its own

    @property
    def tokens(self) -> float:
        """Expected tokens of a step."""
        return float(tokens_by_position(self.accepted))


@lru_cache(maxsize=256)
def speculation(text: str | None) -> Speculation | None:
    """``method:drafts:acceptance:model`` as data; None where nothing is drafted.

    Acceptance is a chance of each draft (0.65), shares of steps by position (0.65/0.40/0.25), or, above 1, the mean
    tokens of a step (2.3); without it `ASSUMED` holds.

    >>> speculation("eagle3:3:0.65/0.40/0.25").tokens, speculation("mtp:3:2.61").tokens, speculation("off")
    (2.3, 2.61, None)
    """
    method, *rest = [part.strip() for part in (text or "").split(":")]
    method = method.lower().replace("-", "_")
    if method in NOTHING and any(rest):
        raise BadInput(f"speculative names no method before its drafts: {shown(text)}", ["such as eagle3:3"])
    if method in NOTHING:
        return None
    family = "mtp" if method.endswith("mtp") and method not in METHODS else METHODS.get(method)
    if family is None:
        raise UnknownName("speculative method", method, METHODS)
    if len(rest) > 3:
        raise BadInput(f"speculative must be method:drafts:acceptance:model, not {shown(text)}")
    count, chance, model = (*rest, "", "", "")[:3]
    if count and not (count.isdecimal() and len(count) < 4 and 1 <= int(count) <= MOST):
        raise BadInput(f"speculative must be method:tokens with 1 to {MOST} tokens, got {shown(text)}",
                       ["such as eagle3:3"])
    drafts = int(count) if count else 1
    return Speculation(method, family, drafts, _accepted(chance, drafts), bool(chance), model or None)


def _accepted(text: str, drafts: int) -> tuple[float, ...]:
    """Share of steps in which each position is accepted."""
    try:
        values = [float(part) for part in text.split("/")] if text else [ASSUMED]
    except ValueError:
        values = []
    if not values or not all(isfinite(value) and value >= 0 for value in values):
        raise BadInput(f"acceptance must be a chance, shares by position, or tokens a step, not {shown(text)}",
                       ["such as 0.65, 0.65/0.40/0.25 or 2.3"])
    if len(values) == 1:
        chance = values[0]
        if chance > drafts + 1:
            raise BadInput(f"{drafts} drafts yield at most {drafts + 1} tokens a step, not {chance:g}")
        chance = chance_of_length(chance, drafts) if chance > 1 else chance
        return tuple(chance ** (i + 1) for i in range(drafts))
    if len(values) != drafts or any(b > a for a, b in zip([1.0, *values], values, strict=False)):
        raise BadInput(f"shares by position: {drafts} that do not increase, at most 1, not {shown(text)}")
    return tuple(values)
