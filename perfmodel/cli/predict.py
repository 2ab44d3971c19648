"""``perfmodel predict``: how fast is one strategy?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.options import (
    BRIEF,
    JSON,
    MEASURED,
    PLOT,
    Question,
    deployment_flags,
    deployment_keywords,
    examples,
    flag,
    numbers,
    picture_flag,
    quantity,
    said,
    whole,
    workload_flags,
)
from perfmodel.cli.output import check_picture, other_rules, show, warn
from perfmodel.errors import BadInput

if TYPE_CHECKING:
    from perfmodel.deployment import Deployment
    from perfmodel.report.measured import Point

EXAMPLES = examples(
    "perfmodel predict --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8",
    "perfmodel predict --model kimi-k2.6 --node 8x-rtx-pro-6000-server \\",
    "    --engine sglang --pp 8 --no-cuda-graphs --memory-fraction 0.9 \\",
    "    --concurrency 1,4,8,16 --input-tokens 200 --output-tokens lognormal:2500:0.8",
    "perfmodel predict --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    "    --kv-dtype fp8 --request-rate 0.2,0.5,1",
    "perfmodel predict --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    "    --kv-dtype fp8 --request-rate 0.5 --ttft-limit 500ms --tpot-limit 50ms",
    "perfmodel predict --model kimi-k2.6 --node 8x-h200-sxm --tp 8 --disaggregation 2:6",
    "perfmodel predict --model kimi-k2.6 --node 8x-h200-sxm --tp 8 --plot curve.png",
)
SERVICE = ("images", "tokens_per_image", "router", "offload_hit_rate", "offload_from", "offload_bandwidth",
           "ttft_limit", "tpot_limit", "disaggregation", "kv_bandwidth")  # fmt: skip
PARTNERS = {"tokens_per_image": "images", "offload_from": "offload_hit_rate", "offload_bandwidth": "offload_hit_rate",
            "kv_bandwidth": "disaggregation"}  # fmt: skip


@click.command(cls=Question, short_help="how fast is one strategy?", epilog=EXAMPLES)
@deployment_flags
@workload_flags
@flag("--request-rate", metavar="R,R,...", section="Workload",
      help="Poisson arrivals a second, in place of --concurrency")
@flag("--requests", metavar="N", section="Workload",
      help="of the whole benchmark, whose first ones come at once (TTFT); default: ten times the concurrency")
@flag("--images", metavar="N", section="Service", help="images a request")
@flag("--tokens-per-image", metavar="N", section="Service", help="of one image [tokens]")
@flag("--router", metavar="NAME", section="Service",
      help="how requests find copies or attention groups: even, round-robin or least-loaded")
@flag("--offload-hit-rate", metavar="X", section="Service", help="share of a prompt whose KV comes from host or disk")
@flag("--offload-from", metavar="NAME", section="Service", help="host (default) or disk")
@flag("--offload-bandwidth", metavar="RATE", section="Service", help="from there, such as '200 GB/s'; else by the node")
@flag("--disaggregation", metavar="P:D", section="Service", help="copies that prefill and copies that decode, as 2:6")
@flag("--kv-bandwidth", metavar="RATE", section="Service", help="between the two, such as '50 GB/s'")
@flag("--ttft-limit", metavar="TIME", section="Service", help="count requests within it (goodput), such as 500ms")
@flag("--tpot-limit", metavar="TIME", section="Service", help="the same of the time per output token")
@JSON
@BRIEF
@PLOT
@picture_flag("throughput", "ttft", "tpot", "parts")
@MEASURED
def predict(**given: Any) -> None:
    """How fast? Output tokens/s, TTFT and TPOT over concurrency, with 80 % bands.

    Says what binds each point and where the time of a token goes. What does not fit into memory is still answered,
    with a warning. A request rate above the capacity is answered with the capacity, and exit code 1.
    """
    from perfmodel.deployment import deploy
    from perfmodel.report.serving_text import curve_text
    from perfmodel.serving import predict as ask

    check_picture(given["plot"])
    rows = measured_rows(given["measured"])
    d = deploy(given["model"], node=given["node"], engine=given["engine"], **deployment_keywords(given))
    points = measured_points(rows, [d], given)
    load = workload(given, points)
    if given["request_rate"] is not None and said("concurrency"):
        raise BadInput("give either --concurrency or --request-rate")
    if given["request_rate"] is not None:
        load = {**load, "concurrency": None, "request_rate": numbers("request_rate", given["request_rate"])}
    if given["requests"] is not None:
        load = {**load, "requests": whole("requests", given["requests"])}
    curve = ask(d, **load, **service(given))
    show(curve, lambda: curve_text(curve, points[0], given["brief"]), given, measured=points)
    warn([*other_rules(d), *curve.warnings])
    if curve.request_rate is not None and max(curve.request_rate) > (curve.capacity_req_s or float("inf")):
        raise click.exceptions.Exit(1)


def workload(given: dict[str, Any], points: dict[int, list[Point]] | None = None) -> dict[str, Any]:
    """Keywords of `predict` and `compare` from the workload flags; what was measured is asked about too."""
    from perfmodel.report.measured import and_measured

    asked = numbers("concurrency", given["concurrency"])
    measured = [point for some in (points or {}).values() for point in some]
    return {
        "concurrency": sorted(and_measured(asked, measured)) if measured else asked,
        "input_tokens": given["input_tokens"],
        "output_tokens": given["output_tokens"],
        "arrival": given["arrival"],
    }


def service(given: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `predict` from the flags of the service that were given; none says anything without its partner."""
    for name, partner in PARTNERS.items():
        if given.get(name) is not None and given.get(partner) is None:
            raise BadInput(f"--{name.replace('_', '-')} goes with --{partner.replace('_', '-')}")
    found: dict[str, Any] = {}
    for name in SERVICE:
        text = given.get(name)
        if text is None:
            continue
        if name in ("router", "offload_from", "disaggregation"):
            found[name] = text
        elif name.endswith("_limit"):
            found[f"{name}_s"] = limit(name, text)
        else:
            found[name] = quantity(name, text, "B/s" if name.endswith("bandwidth") else None)
    return found


def limit(name: str, text: str) -> float:
    """Seconds of a limit such as ``500ms`` or ``2 s``; a bare number could be either, and is refused.

    >>> limit("ttft_limit", "500ms"), limit("ttft_limit", "2 s")
    (0.5, 2.0)
    """
    found = re.fullmatch(r"([0-9]{1,30}(?:\.[0-9]{0,30})?) ?(ms|s)", text.strip())
    if not found or not float(found[1]) > 0:
        raise BadInput(f"{name} must be a time such as 500ms or 2s, not {text[:80]!r}")
    return float(found[1]) * (1e-3 if found[2] == "ms" else 1.0)


def measured_rows(path: str | None) -> list[dict[str, str]]:
    """Rows of the CSV of ``--measured``."""
    if path is None:
        return []
    from perfmodel.report.measured import read_rows

    return read_rows(path)


def measured_points(rows: list[dict[str, str]], deployments: list[Deployment],
                    given: dict[str, Any]) -> dict[int, list[Point]]:  # fmt: skip
    """Measured points by the place of the deployment whose conditions they share; how many is said on stderr."""
    if not rows:
        return {i: [] for i in range(len(deployments))}
    from perfmodel.report.measured import matching
    from perfmodel.serving.lengths import parse_lengths

    inputs, outputs = (parse_lengths(given[name], name).mean for name in ("input_tokens", "output_tokens"))
    points = {i: matching(rows, d, inputs, outputs) for i, d in enumerate(deployments)}
    count = sum(map(len, points.values()))
    warn([f"{count} points from {len(rows)} rows were measured under these conditions"], "measured")
    if count == 0:
        warn(["none of the measured rows has these conditions: model, engine, strategy, kv_dtype, cuda_graphs, and isl "
              "and osl near --input-tokens and --output-tokens"])  # fmt: skip
    if count > len(rows):
        warn(["measured rows that leave the strategy open stand beside every strategy: add columns tp, pp, ep, ..."])
    return points
