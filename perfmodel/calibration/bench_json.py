"""Results that benchmark tools write as JSON: one reader a tool, known by the keys that only it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfmodel.calibration.bench_row import Stated, maybe, number, positive
from perfmodel.calibration.measured import Measurement
from perfmodel.errors import BadInput

DRAFTED = 1.05          # tokens a step, above which drafts were accepted
Read = Callable[[dict[str, Any], str, Stated], list[Measurement]]
Holds = Callable[[dict[str, Any]], bool]


def served(row: dict[str, Any], where: str, given: Stated) -> list[Measurement]:
    """`vllm bench serve` and SGLang's `bench_serving`: medians over requests, totals over the run."""
    requests = number(where, row, "completed")
    prompt = number(where, row, "total_input_tokens") / requests
    answer = number(where, row, "total_output_tokens") / requests
    load = maybe(where, row, "max_concurrency") or given.concurrency
    if load is None:
        raise BadInput(f"{where}: sent at a rate (request_rate {str(row.get('request_rate'))[:20]}), with no limit on "
                       "what is in flight, so the running batch is not known",
                       hints=["measure with --max-concurrency N, or state --concurrency N"])
    load = min(load, requests)
    tpot = maybe(where, row, "median_tpot_ms", "mean_tpot_ms")
    if tpot and answer > 1:
        return [Measurement("tpot", 1e-3 * tpot, load, prompt, answer, source=where)]
    return [Measurement("rate", 1.0 / number(where, row, "output_throughput"), load, prompt, answer, source=where)]


def latency(row: dict[str, Any], where: str, given: Stated) -> list[Measurement]:
    """`vllm bench latency`: seconds of one static batch; the file does not say which."""
    tool = "vllm bench latency"
    return [Measurement("batch", number(where, row, "avg_latency"), given.need(where, tool, "concurrency"),
                        given.need(where, tool, "input_tokens"), given.need(where, tool, "output_tokens"),
                        source=where)]


def throughput(row: dict[str, Any], where: str, given: Stated) -> list[Measurement]:
    """`vllm bench throughput`: all requests at once; the file has the sum of tokens, not how it splits."""
    requests, tool = number(where, row, "num_requests"), "vllm bench throughput"
    prompt, answer = given.input_tokens, given.output_tokens
    each = number(where, row, "total_num_tokens") / requests
    if prompt is None and answer is None:
        given.need(where, tool, "input_tokens")
    prompt = each - answer if prompt is None and answer is not None else prompt
    answer = each - prompt if answer is None and prompt is not None else answer
    return [Measurement("batch", number(where, row, "elapsed_time"), requests,
                        positive(where, "input_tokens", prompt), positive(where, "output_tokens", answer),
                        source=where)]


def offline(row: dict[str, Any], where: str, given: Stated) -> list[Measurement]:
    """SGLang `bench_offline_throughput`: the same, with both sums."""
    requests = number(where, row, "successful_requests")
    prompt, answer = (number(where, row, f"total_{side}_tokens") / requests for side in ("input", "output"))
    return [Measurement("batch", number(where, row, "total_latency"), requests, prompt, answer, source=where)]


def one_batch(row: dict[str, Any], where: str, given: Stated) -> list[Measurement]:
    """SGLang `bench_one_batch`: a prefill and the median decode step of one static batch, without a scheduler."""
    batch, prompt, answer = (number(where, row, key) for key in ("batch_size", "input_len", "output_len"))
    made = [Measurement("prefill", number(where, row, "prefill_latency"), batch, prompt, 1.0, source=where)]
    if step := maybe(where, row, "median_decode_latency"):
        made.append(Measurement("step", step, batch, context=prompt + answer / 2, source=where))
    return made


def one_batch_server(row: dict[str, Any], where: str, given: Stated) -> list[Measurement]:
    """SGLang `bench_one_batch_server`: time to the last first token, and from there to the end."""
    batch, prompt, answer = (number(where, row, key) for key in ("batch_size", "input_len", "output_len"))
    if length := accepted(row, where):
        raise BadInput(f"{where}: speculative decoding ran (acc_length {length:g}); a step of it is no decode step")
    hit = row.get("cache_hit_rate") or 0.0
    prefill, whole = number(where, row, "last_ttft"), number(where, row, "latency")
    made = [] if hit else [Measurement("prefill", prefill, batch, prompt, 1.0, source=where)]
    if answer > 1 and whole > prefill:
        made.append(Measurement("step", (whole - prefill) / (answer - 1), batch, context=prompt + answer / 2,
                                source=where))
    return made


def guidellm(row: dict[str, Any], where: str, given: Stated) -> list[Measurement]:
    """GuideLLM: every benchmark of the file; medians over successful requests."""
    benchmarks, made = row["benchmarks"], []
    for i, one in enumerate(benchmarks[:1000], start=1):
        at = f"{where}: benchmark {i}"
        metrics = _mapping(at, one, "metrics")

        def median(name: str, *statistics: str, metrics: Mapping[str, Any] = metrics, at: str = at) -> float | None:
            found = metrics.get(name)
            good = found.get("successful") if isinstance(found, dict) else None
            return maybe(f"{at}: {name}", good, *(statistics or ("median", "mean"))) if isinstance(good, dict) else None

        load = median("request_concurrency", "mean", "median") or given.concurrency
        asked = one.get("config") or one.get("args")
        strategy = asked.get("strategy") if isinstance(asked, dict) else None
        load = maybe(at, strategy, "streams") or load if isinstance(strategy, dict) else load
        prompt = median("prompt_token_count", "mean") or given.need(at, "GuideLLM", "input_tokens")
        answer = median("output_token_count", "mean") or given.need(at, "GuideLLM", "output_tokens")
        if load is None:
            load = given.need(at, "GuideLLM", "concurrency")
        if (tpot := median("inter_token_latency_ms")) and answer > 1:
            made.append(Measurement("tpot", 1e-3 * tpot, max(load, 1.0), prompt, answer, source=at))
        elif rate := median("output_tokens_per_second", "mean"):
            made.append(Measurement("rate", 1.0 / rate, max(load, 1.0), prompt, answer, source=at))
        else:
            raise BadInput(f"{at}: neither inter_token_latency_ms nor output_tokens_per_second")
    return made


def aiperf(row: dict[str, Any], where: str, given: Stated) -> list[Measurement]:
    """AIPerf and GenAI-Perf: one profile; its concurrency stands in the input_config, where that is kept."""
    def figure(name: str, *statistics: str) -> float | None:
        found = row.get(name)
        return maybe(f"{where}: {name}", found, *statistics) if isinstance(found, dict) else None

    config = row.get("input_config")
    load = given.concurrency
    for key in ("loadgen", "perf_analyzer", "stimulus"):
        part = config.get(key) if isinstance(config, dict) else None
        part = part.get("stimulus", part) if isinstance(part, dict) else None
        load = (maybe(where, part, "concurrency") if isinstance(part, dict) else None) or load
    if load is None:
        load = given.need(where, "AIPerf", "concurrency")
    prompt = figure("input_sequence_length", "avg") or given.need(where, "AIPerf", "input_tokens")
    answer = figure("output_sequence_length", "avg") or given.need(where, "AIPerf", "output_tokens")
    return [profile(where, load, prompt, answer, figure("inter_token_latency", "p50", "avg"),
                    figure("output_token_throughput", "avg"))]


def profile(where: str, load: float, prompt: float, answer: float, tpot_ms: float | None, rate: float | None
            ) -> Measurement:
    """One profile of AIPerf: its inter-token latency is the mean of a request, as TPOT is."""
    if tpot_ms and answer > 1:
        return Measurement("tpot", 1e-3 * tpot_ms, load, prompt, answer, source=where)
    if rate is None:
        raise BadInput(f"{where}: neither inter_token_latency nor output_token_throughput")
    return Measurement("rate", 1.0 / rate, load, prompt, answer, source=where)


def llama_bench(row: Mapping[str, Any], where: str, given: Stated) -> list[Measurement]:
    """llama-bench: prompt processing (n_prompt) or generation (n_gen) of one sequence, at a depth."""
    prompt, generated, depth = (maybe(where, row, key) or 0.0 for key in ("n_prompt", "n_gen", "n_depth"))
    rate = number(where, row, "avg_ts")
    if prompt and generated:                # one figure for both: tokens over the whole time
        return [Measurement("batch", (prompt + generated) / rate, 1.0, prompt, generated + 1.0, source=where)]
    if prompt:
        return [Measurement("prefill", prompt / rate, 1.0, prompt, 1.0, depth, source=where)]
    if not generated:
        raise BadInput(f"{where}: neither n_prompt nor n_gen")
    return [Measurement("step", 1.0 / rate, 1.0, context=depth + generated / 2, source=where)]


def model_of(row: dict[str, Any]) -> str:
    """The model that a result names; empty where it names none. llama-bench names a file, which is none."""
    if isinstance(row.get("model_id"), str):
        return str(row["model_id"])[:300]
    config = row.get("input_config")
    for part, key in ((config, "model_names"), (config.get("endpoint") if isinstance(config, dict) else None,
                                                "model_names")):
        names = part.get(key) if isinstance(part, dict) else None
        if isinstance(names, list) and len(names) == 1:
            return str(names[0])[:300]
    arguments = row.get("args")
    return str(arguments["model"])[:300] if isinstance(arguments, dict) and arguments.get("model") else ""


def accepted(row: dict[str, Any], where: str) -> float | None:
    """Mean tokens a step of speculative decoding, where a result says that it ran."""
    length = maybe(where, row, "spec_decode_acceptance_length", "accept_length", "acc_length")
    return length if length and length > DRAFTED else None


def _mapping(where: str, row: Any, name: str) -> Mapping[str, Any]:
    found = row.get(name) if isinstance(row, dict) else None
    if not isinstance(found, dict):
        raise BadInput(f"{where}: {name} is missing")
    return found


def _keys(*names: str) -> Holds:
    return lambda row: all(name in row for name in names)


def _benchmarks(row: dict[str, Any]) -> bool:
    found = row.get("benchmarks")
    return isinstance(found, list) and bool(found) and all(isinstance(one, dict) and "metrics" in one for one in found)


# What is taken for granted with a tool's figures, and said
NOTES: dict[str, tuple[str, ...]] = {
    "llama-bench": ("llama.cpp's scheduling, graphs and memory are not known here: its steps are fitted as those of "
                    "the engine named",),
    "vllm bench throughput": ("all requests at once: more than run together are priced as a steady queue, without "
                              "ramp and tail",),
    "SGLang bench_offline_throughput": ("all requests at once: more than run together are priced as a steady queue, "
                                        "without ramp and tail",),
}
READERS: tuple[tuple[str, Holds, Read], ...] = (
    ("GuideLLM", _benchmarks, guidellm),
    ("AIPerf", lambda row: any(isinstance(row.get(name), dict) and "avg" in row[name]
                               for name in ("inter_token_latency", "output_token_throughput")), aiperf),
    ("SGLang bench_serving", _keys("completed", "total_input_tokens", "total_output_tokens_retokenized"), served),
    ("vllm bench serve", _keys("completed", "total_input_tokens", "total_output_tokens", "output_throughput"), served),
    ("vllm bench latency", _keys("avg_latency", "latencies"), latency),
    ("vllm bench throughput", _keys("elapsed_time", "num_requests", "total_num_tokens"), throughput),
    ("SGLang bench_offline_throughput", _keys("successful_requests", "total_latency", "total_output_tokens"), offline),
    ("SGLang bench_one_batch_server", _keys("batch_size", "input_len", "latency", "last_ttft"), one_batch_server),
    ("SGLang bench_one_batch", _keys("batch_size", "input_len", "prefill_latency"), one_batch),
    ("llama-bench", _keys("avg_ts", "n_prompt", "n_gen"), llama_bench),
)
