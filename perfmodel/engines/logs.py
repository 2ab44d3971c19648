"""What an engine printed while it started: the figures of its own memory lines, whichever version wrote them.

Lines that say nothing about memory are skipped; a broken or half log gives what it has. A line is looked at only if it
holds one of a few literal words, and no pattern can backtrack far, so the time is linear in the size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from perfmodel.errors import BadInput

MAX_BYTES = 64 * 2**20      # of a log [B]
MAX_LINE = 8192             # characters that are looked at
MAX_ERRORS = 20
_N = r"(-?\d{1,12}(?:\.\d{1,6})?)"


@dataclass(frozen=True, slots=True)
class LaunchLog:
    """Figures of one start-up, per GPU, in GiB and tokens; None where the log does not say.

    Ranks print their own: weights are the largest, memory and tokens for KV the smallest.
    """

    engine: str = ""
    version: str = ""
    total_gib: float | None = None              # what the driver shows a process
    fraction: float | None = None
    before_weights_gib: float | None = None     # free at start
    weights_gib: float | None = None
    after_weights_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    kv_available_gib: float | None = None
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    concurrency: float | None = None            # sequences of ``context`` tokens
    context: int | None = None
    graph_gib: float | None = None
    after_pool_gib: float | None = None
    free_gib: float | None = None               # left at the end
    needed_gib: float | None = None             # for one sequence of full length
    longest_context: int | None = None          # that the engine says would fit
    max_running: int | None = None
    errors: tuple[str, ...] = field(default=())

    @property
    def known(self) -> dict[str, Any]:
        """The fields that the log states."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) not in (None, "", ())}


# (literal that a line must hold, engine, pattern, fields of its groups). GB in SGLang's and old vLLM's lines is GiB
_LINES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("LLM engine (v", "vllm", r"LLM engine \(v([\w.+]{1,60})\)", ("version",)),
    ("vLLM API server version", "vllm", r"vLLM API server version ([\w.+]{1,60})", ("version",)),
    (" took ", "vllm", rf"(?:Model loading|Loading model weights) took {_N} Gi?B", ("weights_gib",)),
    ("Available KV cache memory", "vllm", rf"Available KV cache memory: {_N} GiB", ("kv_available_gib",)),
    ("KV cache size", "vllm", r"KV cache size: ([\d,]{1,20}) tokens", ("kv_tokens",)),
    ("Maximum concurrency", "vllm", rf"Maximum concurrency for ([\d,]{{1,20}}) tokens per request: {_N}x",
     ("context", "concurrency")),
    (" blocks: ", "vllm", r"# (?:GPU|cuda|CUDA) blocks: (\d{1,12})", ("kv_blocks",)),
    ("Graph capturing finished", "vllm", rf"capturing finished in \d{{1,9}} secs?, took {_N} GiB", ("graph_gib",)),
    ("Free memory on device", "vllm", rf"Free memory on device (?:\w{{1,12}}:\d{{1,3}} )?\({_N}/{_N} GiB\)",
     ("before_weights_gib", "total_gib")),
    ("Desired GPU memory utilization", "vllm", rf"Desired GPU memory utilization is \({_N},", ("fraction",)),
    ("for weight,", "vllm", rf"{_N} GiB for weight, {_N} GiB for peak activation, {_N} GiB for non-torch",
     ("weights_gib", "activation_gib", "non_torch_gib")),
    ("for peak activation", "vllm", rf"{_N} GiB for peak activation", ("activation_gib",)),
    ("Current kv cache memory in use", "vllm", rf"Current kv cache memory in use is {_N} GiB", ("kv_available_gib",)),
    ("gpu_memory_utilization (", "vllm", rf"\({_N}GiB\) x gpu_memory_utilization \({_N}\)", ("total_gib", "fraction")),
    ("model weights take", "vllm", rf"model weights take {_N}GiB", ("weights_gib",)),
    ("non_torch_memory takes", "vllm", rf"non_torch_memory takes {_N}GiB", ("non_torch_gib",)),
    ("PyTorch activation peak", "vllm", rf"PyTorch activation peak memory takes {_N}GiB", ("activation_gib",)),
    ("reserved for KV Cache", "vllm", rf"reserved for KV Cache is {_N}GiB", ("kv_available_gib",)),
    ("torch peak memory increase", "vllm", rf"torch peak memory increase: {_N}GiB", ("activation_gib",)),
    ("weights memory:", "vllm", rf"weights memory: {_N}GiB", ("weights_gib",)),
    ("non-torch forward increase", "vllm", rf"non-torch forward increase memory: {_N}GiB", ("non_torch_gib",)),
    ("KV cache is needed", "vllm", rf"\({_N} GiB KV cache is needed", ("needed_gib",)),
    ("available KV cache memory (", "vllm", rf"available KV cache memory \({_N} GiB\)", ("kv_available_gib",)),
    ("estimated maximum model length", "vllm", r"estimated maximum model length is (\d{1,12})", ("longest_context",)),
    ("max seq len (", "vllm", r"max seq len \((\d{1,12})\)", ("context",)),
    ("can be stored in KV cache (", "vllm", r"can be stored in KV cache \((\d{1,12})\)", ("kv_tokens",)),
    ("Load weight begin", "sglang", rf"Load weight begin\. avail mem={_N} GB", ("before_weights_gib",)),
    ("Load weight end", "sglang", rf"avail mem={_N} GB", ("after_weights_gib",)),
    ("Load weight end", "sglang", rf"mem usage={_N} GB", ("weights_gib",)),
    ("KV Cache ", "sglang", r"#tokens: (\d{1,12}),", ("kv_tokens",)),
    ("KV Cache ", "sglang", rf"KV size: {_N} GB", ("kv_available_gib",)),
    ("KV Cache ", "sglang", rf" K size: {_N} GB, V size: {_N} GB", ("_k", "_v")),
    ("Memory pool end", "sglang", rf"Memory pool end\. avail mem={_N} GB", ("after_pool_gib",)),
    ("graph end", "sglang", rf"graph end\..{{0,400}}mem usage={_N} GB", ("graph_gib",)),
    ("max_total_num_tokens=", "sglang", r"max_total_num_tokens=(-?\d{1,12})", ("kv_tokens",)),
    ("max_total_num_tokens=", "sglang", r"max_running_requests=(\d{1,12})", ("max_running",)),
    ("max_total_num_tokens=", "sglang", r"context_len=(\d{1,12})", ("context",)),
    ("max_total_num_tokens=", "sglang", rf"available_(?:gpu|cpu)_mem={_N} GB", ("free_gib",)),
    ("mem_fraction_static=", "sglang", rf"mem_fraction_static={_N}", ("fraction",)),
    ("Memory used after loading model weights (inside torch)", "tensorrt-llm",
     rf"memory usage profiling: {_N} GiB", ("weights_gib",)),
    ("Memory dynamically allocated during inference", "tensorrt-llm", rf"memory usage profiling: {_N} GiB",
     ("activation_gib",)),
    ("Memory used outside torch", "tensorrt-llm", rf"memory usage profiling: {_N} GiB", ("non_torch_gib",)),
    ("device total memory", "tensorrt-llm", rf"device total memory {_N} GiB", ("total_gib",)),
    ("fraction is set", "tensorrt-llm", rf"fraction is set {_N}", ("fraction",)),
    ("paged KV cache (", "tensorrt-llm", rf"Allocated {_N} GiB for max tokens in paged KV cache \((\d{{1,12}})\)",
     ("kv_available_gib", "kv_tokens")),
)
_READERS = tuple((key, engine, re.compile(pattern), names) for key, engine, pattern, names in _LINES)

_ERRORS = ("No available memory for the cache blocks", "KV cache is needed, which is larger",
           "is larger than the maximum", "on startup is less than desired", "out of memory", "OutOfMemoryError",
           "exceeds available Mamba",
           "Not enough memory. Please try to increase", "leave no GPU memory for the KV cache",
           "larger than the profiled value", "insufficient GPU memory")
_WHOLE = {f.name for f in fields(LaunchLog) if f.type == "int | None"}
_SMALLEST = {"kv_available_gib", "kv_tokens", "kv_blocks", "concurrency", "before_weights_gib", "after_weights_gib",
             "after_pool_gib", "free_gib"}


def read_log(path: str | Path) -> LaunchLog:
    """The figures of a log file of at most 64 MiB."""
    file = Path(path)
    try:
        if file.exists() and not file.is_file():                # a pipe waits for ever, a device never ends
            raise BadInput(f"{file.name}: not a plain file")
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise BadInput(f"{file.name}: {size} bytes; a start-up log of at most {MAX_BYTES} is read",
                           ["cut it after the line that says the server is ready"])
        with file.open(encoding="utf-8", errors="replace") as lines:
            return parse_log(lines)
    except OSError as error:
        raise BadInput(f"{file}: cannot be read, {(error.strerror or 'unknown error').lower()}") from None


def parse_log(lines: Iterable[str]) -> LaunchLog:
    """The figures of the lines of a log; more than 64 MiB of them are refused.

    >>> log = parse_log(["Model loading took 14.99 GiB memory and 5 seconds", "GPU KV cache size: 476,016 tokens"])
    >>> log.engine, log.weights_gib, log.kv_tokens
    ('vllm', 14.99, 476016)
    """
    seen: dict[str, list[str]] = {}
    errors: list[str] = []
    votes: dict[str, int] = {}
    size = 0
    for line in lines:
        size += len(line)
        if size > MAX_BYTES:
            raise BadInput(f"the log is longer than {MAX_BYTES} characters")
        text = line[:MAX_LINE]
        for key, engine, pattern, names in _READERS:
            if key in text and (match := pattern.search(text)):
                votes[engine] = votes.get(engine, 0) + 1
                for name, value in zip(names, match.groups(), strict=True):
                    seen.setdefault(name, []).append(value)
        if len(errors) < MAX_ERRORS and any(word in text for word in _ERRORS):
            errors.append(" ".join(text.split())[-300:])
    if "_k" in seen and "kv_available_gib" not in seen:
        seen["kv_available_gib"] = [str(float(k) + float(v)) for k, v in zip(seen["_k"], seen["_v"], strict=True)]
    found: dict[str, Any] = {name: _one(name, values) for name, values in seen.items() if not name.startswith("_")}
    engine = max(votes, key=lambda name: votes[name]) if votes else ""
    return LaunchLog(engine=engine, errors=tuple(dict.fromkeys(errors)), **found)


def _one(name: str, values: list[str]) -> float | int | str:
    """One figure out of those that ranks and phases printed: phases of graph capture add up."""
    if name == "version":
        return values[-1]
    numbers = [float(value.replace(",", "")) for value in values]
    least = min if name in _SMALLEST else max
    chosen = sum(dict.fromkeys(numbers)) if name == "graph_gib" else least(numbers)
    return int(chosen) if name in _WHOLE else chosen
