"""Three whole answers pinned to six digits: a change is a decision, and goes into CHANGELOG.md with its size.

Write them anew with ``python -m tests.test_golden --write``, in the root of the checkout.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perfmodel as pm

GOLDEN = Path(__file__).parent / "golden"
NODE = "8x-rtx-pro-6000-server"


def memory_pp8() -> Any:
    """The launch of the case, at a fraction that fits."""
    d = pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.10", pp=8, cuda_graphs=False, max_sequences=64,
                  memory_fraction=0.92)  # fmt: skip
    return pm.memory(d).to_dict()


def step_tp8() -> Any:
    """Row by row, with graphs."""
    d = pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.10", tp=8, memory_fraction=0.92)
    return pm.step(d, batch=[1, 8, 32], context=1024).to_dict()


def predict_tp8() -> Any:
    """A curve with its bands, parts and assumptions."""
    d = pm.deploy("kimi-k2.6", node=NODE, engine="vllm==0.33.0", tp=8, kv_dtype="fp8", memory_fraction=0.94)
    return pm.predict(d, concurrency=[1, 8, 32, 128], input_tokens=1024, output_tokens=1024).to_dict()


ANSWERS: dict[str, Callable[[], Any]] = {"memory-pp8": memory_pp8, "step-tp8": step_tp8, "predict-tp8": predict_tp8}


def rounded(value: Any) -> Any:
    """The answer with its floats at six significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def compare(ours: Any, pinned: Any, where: str) -> None:
    """The same keys, words and counts; floats within one unit of the sixth digit."""
    assert type(ours) is type(pinned), f"{where}: {ours!r} was {pinned!r}"
    if isinstance(ours, dict):
        assert ours.keys() == pinned.keys(), where
        for key in ours:
            compare(ours[key], pinned[key], f"{where}.{key}")
    elif isinstance(ours, list):
        assert len(ours) == len(pinned), where
        for index, pair in enumerate(zip(ours, pinned, strict=True)):
            compare(*pair, f"{where}[{index}]")
    elif isinstance(ours, float):
        assert ours == pytest.approx(pinned, rel=1e-5, abs=1e-12), where
    else:
        assert ours == pinned, where


@pytest.mark.parametrize("name", ANSWERS)
def test_answer_is_the_pinned_one(name: str) -> None:
    pinned = json.loads((GOLDEN / f"{name}.json").read_text())
    compare(json.loads(json.dumps(rounded(ANSWERS[name]()))), pinned, name)


def test_every_pinned_file_has_its_question() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == sorted(ANSWERS)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_golden --write")
    for name, answer in ANSWERS.items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(rounded(answer()), indent=1) + "\n")
