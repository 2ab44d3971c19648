"""Why a search found nothing, and what near the question does fit: found by asking again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from perfmodel.deployment import varied
from perfmodel.errors import IllegalDeployment, Infeasible, PerfModelError, QuestionError
from perfmodel.planner.kinds import Kind
from perfmodel.planner.space import kept_families, strategies

GROUPS = ("tp", "pp", "dp", "ep", "dp_attention", "dcp")
NEAREST = 3  # values of a constraint that are named


def why_nothing(spans: Sequence[Kind], fixed: dict[str, Any], refused: Counter[str], concurrency: float,
                tokens: float) -> PerfModelError:
    """The refusal to raise: the engine's rule where nothing else refused, else what refused how many."""
    base = spans[0].base
    where = f"{base.model.name} on {', '.join(dict.fromkeys(kind.base.node.name for kind in spans))}"
    count = ", ".join(f"{count:,} by {what}" for what, count in sorted(refused.items()))
    reasons = [f"nothing fits {where}: {count or 'no strategy'} refused"]
    rule, advice = _rule(spans[0], fixed) if any(name in fixed for name in GROUPS) else ("", ())
    near = _near(spans[0], fixed, concurrency, tokens)
    hints = [*near, *(() if near else advice)]
    if refused["context"]:
        reasons.append(f"input and output together are {tokens:g} tokens, beyond the context")
        hints.append(f"context={math.ceil(tokens)} or more")
    if rule:
        reasons.append(rule)
    if refused["memory"] and not near:
        hints.append("more GPUs, a smaller weight format, or a shorter context is needed")
    kind = IllegalDeployment if set(+refused) == {"engine"} else Infeasible
    return kind("; ".join(reasons), hints)


def _rule(kind: Kind, fixed: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """What the engine says most often, and what it proposes instead; empty where it refuses nothing."""
    said: Counter[tuple[str, tuple[str, ...]]] = Counter()
    own = {key: value for key, value in fixed.items() if key not in ("quantization", "calibration")}
    for strategy in strategies(kind.gpus, kind.base.facts.experts > 0, kind.base.model.layers, own):
        try:
            varied(kind.base, **{**own, **strategy})
        except QuestionError as error:
            said[error.message, error.hints] += 1
    return said.most_common(1)[0][0] if said else ("", ())


def _near(kind: Kind, fixed: dict[str, Any], concurrency: float, tokens: float) -> list[str]:
    """For each fixed size that alone stands in the way: the nearest values with which something fits."""
    own = {key: value for key, value in fixed.items() if key not in ("quantization", "calibration")}
    found = []
    for name in (name for name in GROUPS if name in own):
        rest = {key: value for key, value in own.items() if key != name}
        families, _ = kept_families(kind.base, rest, concurrency, tokens, kind.gpus)
        values = {int(getattr(d.options, name)) for family in families for _, members in family.parts
                  for d, _ in members} - {own[name]}
        nearest = sorted(values, key=lambda value: (abs(value - own[name]), value))[:NEAREST]
        if nearest:
            found.append(f"{' or '.join(f'{name}={value}' for value in nearest)} would fit")
    return found
