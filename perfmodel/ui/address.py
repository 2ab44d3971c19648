"""What the page shows, as a value, and the address that restores it. Nothing here is executed or opened."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from perfmodel.cli.options import STRATEGY, strategy
from perfmodel.errors import BadInput, UnknownName, shown

PAGES = ("compare", "measured", "job")
MOST_STRATEGIES = 4
MOST_ADDRESS = 6_000  # characters of one packed file in an address; browsers and proxies take more
TOO_LARGE = "too-large"  # stands in the address for a file that is longer than that
MOST_UNPACKED = 4 * 2**20  # characters
_STRATEGY = re.compile(r"[\w.,:+=\- ]{0,400}")  # no separators of paths, nothing that a shell would read
SLIDERS = tuple(keyword.name for keyword in STRATEGY if keyword.reads == "whole" and keyword.name != "dcp")


@dataclass(frozen=True)
class View:
    """Everything that is set on the page. Names are those of the command line; packed files are text, see `pack`."""

    page: str = "compare"
    model: str = "kimi-k2.6"
    config: str = ""  # an uploaded config.json, packed; replaces `model`
    node: str = "8x-rtx-pro-6000-server"
    machine: str = ""  # an uploaded node file, packed; replaces `node`
    engine: str = "vllm"
    strategies: tuple[str, ...] = ()  # texts of --strategy; none: the usual ones of the node
    context: int = 32_768  # 0: the model's own
    concurrency: int = 128  # the largest; curves go there in powers of two
    input_tokens: str = "1024"
    output_tokens: str = "1024"
    measured: str = ""  # rows of an uploaded benchmark, packed
    log: str = ""  # figures of an uploaded start-up log, packed
    on: int = 0  # which strategy they were measured on
    fit: bool = False  # predict with factors fitted to the rows
    samples: int = 100_000
    at_once: int = 0  # requests that the client of a job keeps in flight; 0: all
    price: float = 0.0  # of a GPU hour; 0: no price
    restarts: int = 0


DEFAULT = View()
PACKED = ("config", "machine", "measured", "log")
_LIMITS = {
    "context": (0, 10**8),
    "concurrency": (1, 10**5),
    "on": (0, MOST_STRATEGIES - 1),
    "samples": (1, 10**9),
    "at_once": (0, 10**7),
    "price": (0, 10**6),
    "restarts": (0, 10**6),
}


def to_address(view: View) -> dict[str, str | list[str]]:
    """Query parameters of a view; what is as by default is left out.

    >>> to_address(View(model="qwen3-8b", strategies=("tp=2", "tp=1,dp=2"), fit=True))
    {'model': 'qwen3-8b', 'strategies': ['tp=2', 'tp=1,dp=2'], 'fit': 'on'}
    """
    found: dict[str, str | list[str]] = {}
    for field in fields(View):
        value = getattr(view, field.name)
        if value == field.default:
            continue
        if field.name in PACKED and len(value) > MOST_ADDRESS:
            value = TOO_LARGE
        text = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
        found[field.name.replace("_", "-")] = list(text) if isinstance(text, tuple) else f"{text}"
    return found


def from_address(query: Mapping[str, Iterable[str]]) -> View:
    """The view of query parameters, each with all of its values; what is wrong is refused.

    >>> from_address({"page": ["job"], "samples": ["500"]}).samples
    500
    """
    types = {field.name: type(field.default) for field in fields(View)}
    found: dict[str, Any] = {}
    for key, values in query.items():
        name, texts = key.replace("-", "_"), list(values)
        if name not in types:
            raise UnknownName("part of an address", key, [known.replace("_", "-") for known in types])
        if types[name] is tuple:
            found[name] = tuple(texts)
        elif len(texts) != 1:
            raise BadInput(f"the address says {key} {len(texts)} times; once is needed")
        else:
            found[name] = _value(key, name, texts[0], types[name])
    for name in PACKED:
        if found.get(name, TOO_LARGE) != TOO_LARGE:
            unpack(found[name])
    return checked(replace(DEFAULT, **found))


def _value(key: str, name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text not in ("on", "off"):
            raise BadInput(f"{key} in the address must be on or off, not {shown(text)}")
        return text == "on"
    if kind is str:
        return text
    try:
        number = kind(text[:40])
    except ValueError:
        raise BadInput(f"{key} in the address must be a number, not {shown(text)}") from None
    return number


def checked(view: View) -> View:
    """The same view, or a refusal of what no page could show."""
    if view.page not in PAGES:
        raise UnknownName("page", view.page, PAGES)
    if len(view.strategies) > MOST_STRATEGIES:
        raise BadInput(f"{len(view.strategies)} strategies; at most {MOST_STRATEGIES} stand side by side")
    for text in view.strategies:
        keywords(text)
    for name, (least, most) in _LIMITS.items():
        if not least <= getattr(view, name) <= most:
            value = shown(getattr(view, name))
            raise BadInput(f"{name.replace('_', '-')} must lie between {least:,} and {most:,}, not {value}")
    lost = [name for name in PACKED if getattr(view, name) == TOO_LARGE]
    if lost:
        word = {"config": "config.json", "machine": "node file", "measured": "benchmark", "log": "log"}[lost[0]]
        raise BadInput(f"this address was made with a {word} too large for an address", [f"upload the {word} again"])
    return view


def keywords(text: str) -> dict[str, Any]:
    """Keywords of `deploy` from the text of a strategy, as --strategy takes it; nothing that names a file.

    >>> keywords("tp=8,ep=8")
    {'tp': 8, 'ep': 8}
    """
    if not _STRATEGY.fullmatch(text):
        raise BadInput(f"strategy {shown(text)}: only letters, digits and .,:+=- are taken, 400 characters at most")
    found = strategy(text) if text.strip() else {}
    if "calibration" in found:
        raise BadInput("a strategy on this page names no calibration", ["upload a benchmark and fit to it"])
    return found


def strategy_text(given: Mapping[str, Any]) -> str:
    """The text of a strategy; degrees of one and words that say "as by default" are left out.

    >>> strategy_text({"tp": 8, "ep": 1, "cuda_graphs": False, "kv_dtype": "auto", "layers_per_stage": (7, 8)})
    'tp=8,cuda_graphs=off,layers_per_stage=7,8'
    """
    kept = {name: value for name, value in given.items() if value is not None and (name, value) != ("kv_dtype", "auto")}
    kept = {name: value for name, value in kept.items() if name not in SLIDERS or value > 1}
    return ",".join(f"{name}={_written(value)}" for name, value in kept.items()) or "tp=1"


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def pack(text: str) -> str:
    """Text as it stands in an address.

    >>> unpack(pack("a" * 1000)) == "a" * 1000, len(pack("a" * 1000)) < 40
    (True, True)
    """
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def unpack(packed: str) -> str:
    """The text again, of at most 4 MiB however it was packed."""
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        reader = zlib.decompressobj()
        text = reader.decompress(raw, MOST_UNPACKED)
        if not reader.eof:
            raise BadInput("a file in the address is cut off or too large", ["upload it again"])
        return text.decode()
    except (binascii.Error, zlib.error, UnicodeError, ValueError):
        raise BadInput("a file in the address is damaged", ["copy the whole address, or upload it again"]) from None
