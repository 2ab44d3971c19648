"""Traces of requests as others publish them: who came when, with how many tokens, and which blocks of the prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import BadInput, UnknownName, is_number, shown
from perfmodel.errors import whole as least
from perfmodel.serving.tables_in import rows, whole

# Sources. mooncake: github kvcache-ai/Mooncake FAST25-release/traces and AIPerf's trace replay (docs.nvidia.com/aiperf,
# benchmark-modes/trace-replay): JSON lines with timestamp [ms], input_length, output_length, hash_ids of 512 tokens.
# burstgpt: github HPMLL/BurstGPT README: Timestamp [s], Request tokens, Response tokens, 0 where the request failed.
# azure: github Azure/AzurePublicDataset AzureLLMInferenceDataset2023.md: TIMESTAMP, ContextTokens, GeneratedTokens.
FORMATS = ("mooncake", "burstgpt", "azure", "plain")
COLUMNS = {
    "mooncake": (("timestamp", "created_time"), ("input_length", "input_tokens"), ("output_length", "output_tokens")),
    "burstgpt": (("Timestamp",), ("Request tokens",), ("Response tokens",)),
    "azure": (("TIMESTAMP",), ("ContextTokens",), ("GeneratedTokens",)),
    "plain": (("arrival_s",), ("input_tokens",), ("output_tokens",)),
}
MOONCAKE_BLOCK = 512
MOST_IDS = 50_000_000  # of a whole trace


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in the order of their arrival; seconds from the first."""

    arrival_s: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    hash_ids: tuple[tuple[int, ...], ...] | None
    form: str
    dropped: int  # rows without an answer

    @property
    def rate(self) -> float:
        """Requests a second over the whole trace; infinite where all come at once. [1/s]"""
        span = float(self.arrival_s[-1])
        return len(self.inputs) / span if span > 0 else float("inf")

    def __repr__(self) -> str:
        return f"<Trace {self.form}, {len(self.inputs):,} requests over {self.arrival_s[-1]:.4g} s>"


def read_trace(path: str | Path, form: str | None = None, limit: int | None = None, speed: float = 1.0) -> Trace:
    """A trace file: mooncake (AIPerf) JSON lines, BurstGPT or Azure CSV, or arrival_s,input_tokens,output_tokens.

    The format is read off the columns unless ``form`` names it. ``limit`` takes the first requests only, ``speed``
    replays so many times faster.
    """
    if form is not None and form not in FORMATS:
        raise UnknownName("format of a trace", form, FORMATS)
    if not is_number(speed) or not 1e-6 <= speed <= 1e6:
        raise BadInput(f"speed must lie between 1e-6 and 1e6, not {shown(speed)}")
    limit = None if limit is None else least("limit", limit, 1)
    name = Path(path).name
    times: list[float] = []
    inputs: list[int] = []
    outputs: list[int] = []
    ids: list[tuple[int, ...]] = []
    dropped = held = 0
    for number, row in enumerate(rows(path), start=1):
        where = f"{name}, row {number}"
        if form is None:
            form = _form(row, name)
        when, prompt, answer = (_field(row, names, where) for names in COLUMNS[form])
        _, given_in, given_out = (_column(row, names) for names in COLUMNS[form])
        if form in ("burstgpt", "azure") and _empty(prompt, answer):
            dropped += 1
            continue
        times.append(_CLOCK[form](when, where))
        inputs.append(whole(prompt, where, given_in))
        outputs.append(whole(answer, where, given_out))
        if "hash_ids" in row and row["hash_ids"] is not None:
            ids.append(_ids(row["hash_ids"], where))
            held += len(ids[-1])
            if held > MOST_IDS:
                raise BadInput(f"{name} has more than {MOST_IDS:,} hash ids")
        if limit is not None and len(inputs) >= limit:
            break
    if not inputs:
        raise BadInput(f"{name} has no requests" + (f"; {dropped:,} rows have no answer" if dropped else ""))
    if ids and len(ids) != len(inputs):
        raise BadInput(f"{name}: hash_ids in {len(ids):,} of {len(inputs):,} rows; give all or none")
    order = np.argsort(times, kind="stable")
    at = np.asarray(times, float)[order]
    hashes = tuple(ids[i] for i in order.tolist()) if ids else None
    lengths = (np.asarray(inputs)[order], np.asarray(outputs)[order])
    return Trace((at - at[0]) / speed, *lengths, hashes, str(form), dropped)


def _form(row: dict[str, Any], name: str) -> str:
    for form, columns in COLUMNS.items():
        if all(any(one in row for one in names) for names in columns[1:]) and any(c in row for c in columns[0]):
            return form
    if {"input_length", "output_length"} & set(row) and "delay" in row:
        raise BadInput(f"{name}: turns with a delay instead of a timestamp are a closed loop, not a trace of arrivals")
    raise BadInput(
        f"{name} is no trace that is known: columns {', '.join(map(str, row))}"[:300],
        [f"{form}: {', '.join(names[0] for names in columns)}" for form, columns in COLUMNS.items()],
    )


def _column(row: dict[str, Any], names: tuple[str, ...]) -> str:
    """The first of these names that the row has."""
    return next((one for one in names if one in row), names[0])


def _field(row: dict[str, Any], names: tuple[str, ...], where: str) -> Any:
    if (one := _column(row, names)) in row:
        return row[one]
    raise BadInput(f"{where} has no {one}")


def _empty(prompt: Any, answer: Any) -> bool:
    """Failed requests of the published traces have 0 tokens."""
    return str(answer).strip() in ("0", "") or str(prompt).strip() in ("0", "")


def _seconds(value: Any, where: str) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not 0 <= number < 1e15:
        raise BadInput(f"{where}: the time must be a number of at least 0, not {str(value)[:40]!r}")
    return number


def _moment(value: Any, where: str) -> float:
    """Seconds of a time such as 2023-11-16 18:15:46.6805900; Python reads six digits, Azure prints seven."""
    text = str(value).strip()[:40]
    head, dot, tail = text.partition(".")
    digits = len(tail) - len(tail.lstrip("0123456789"))
    try:
        moment = datetime.fromisoformat(head + tail[digits:])
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.timestamp() + float(f"0.{tail[:digits] or 0}" if dot else 0)
    except (ValueError, OverflowError):
        raise BadInput(f"{where}: the time must look like 2023-11-16 18:15:46.680, not {text!r}") from None


_CLOCK: dict[str, Callable[[Any, str], float]] = {
    "mooncake": lambda value, where: 1e-3 * _seconds(value, where),
    "burstgpt": _seconds,
    "azure": _moment,
    "plain": _seconds,
}


def _ids(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(one) is int and abs(one) < 2**64 for one in value):
        raise BadInput(f"{where}: hash_ids must be a list of whole numbers of at most 64 bits")
    return tuple(value)
