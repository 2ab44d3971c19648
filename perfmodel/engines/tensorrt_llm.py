"""TensorRT-LLM, briefly: split, KV rule, defaults and command. What is not modelled is refused, not guessed."""

from __future__ import annotations

VERSIONS = ("1.0",)


def mixes_prefill(options: Options) -> bool:
    """Whether prompt tokens join the decode batch: in-flight batching does."""
    return True
