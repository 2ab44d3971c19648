"""Commands that measure what a plan predicts: the engines' own load generators, on the server that the plan starts."""

from __future__ import annotations

from perfmodel.deployment import Deployment
from perfmodel.engines.versions import at_least
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.loop import ROUNDS

_VLLM = "vllm bench serve", "python benchmarks/benchmark_serving.py"  # the subcommand came with 0.10, the script before


def measure_command(deployment: Deployment, curve: ServingCurve) -> str:
    """The closed loop of one point: fixed lengths, answers not cut short, so many requests in flight.

    Distributions of lengths are measured at their means, as random tokens.
    """
    options, model = deployment.options, deployment.model
    name = model.aliases[0] if model.aliases else model.name
    inputs, outputs, flight = round(curve.input_tokens), round(curve.output_tokens), round(float(curve.concurrency[0]))
    shared = ["--dataset-name", "random", "--random-input-len", str(inputs), "--random-output-len", str(outputs),
              "--max-concurrency", str(flight), "--num-prompts", str(round(ROUNDS) * flight)]
    if options.engine == "sglang":  # its answers ignore the end token unless told otherwise; ratio 1 fixes the lengths
        words = ["python -m sglang.bench_serving --backend sglang --model", name, *shared, "--random-range-ratio", "1"]
    elif options.engine == "vllm":
        program = _VLLM[not at_least(options.version, "0.10")]
        words = [program, "--model", name, *shared, "--ignore-eos", "--save-result"]
    else:
        words = ["python -m tensorrt_llm.serve.scripts.benchmark_serving --backend openai --model", name, *shared,
                 "--random-ids", "--ignore-eos"]
    if "kimi" in name.lower() and options.engine == "vllm":
        words.append("--trust-remote-code")
    return " ".join(words)
