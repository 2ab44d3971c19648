"""``perfmodel predict``: how fast is one strategy?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.options import (
    JSON,
    MEASURED,
    PLOT,
    Question,
    deployment_flags,
    deployment_keywords,
    examples,
    numbers,
    workload_flags,
)
from perfmodel.cli.output import check_picture, show, warn

if TYPE_CHECKING:
    from perfmodel.report.measured import Point
    from perfmodel.serving import ServingCurve

EXAMPLES = examples(
    "perfmodel predict --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8",
    "perfmodel predict --model kimi-k2.6 --node 8x-rtx-pro-6000-server \\",
    "    --engine sglang --pp 8 --no-cuda-graphs --memory-fraction 0.9 \\",
    "    --concurrency 1,4,8,16 --input-tokens 200 --output-tokens lognormal:2500:0.8",
    "perfmodel predict --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    "    --kv-dtype fp8 --request-rate 0.2,0.5,1",
    "perfmodel predict --model kimi-k2.6 --node 8x-h200-sxm --tp 8 --plot curve.png",
)


@click.command(cls=Question, short_help="how fast is one strategy?", epilog=EXAMPLES)
@deployment_flags
@workload_flags
@click.option("--request-rate", metavar="R,R,...", help="Poisson arrivals a second, in place of --concurrency.")
@JSON
@PLOT
@MEASURED
def predict(**given: Any) -> None:
    """How fast? Output tokens/s, TTFT and TPOT over concurrency, with 80 % bands.

    Says what binds each point and where the time of a token goes. What does not fit into memory is still answered,
    with a warning.
    """
    from perfmodel.deployment import deploy
    from perfmodel.report.serving_text import curve_text
    from perfmodel.serving import predict as ask

    check_picture(given["plot"])
    rows = measured_rows(given["measured"])
    d = deploy(given["model"], node=given["node"], engine=given["engine"], **deployment_keywords(given))
    load = workload(given)
    if given["request_rate"] is not None:
        load = {**load, "concurrency": None, "request_rate": numbers("request_rate", given["request_rate"])}
    curve = ask(d, **load)
    points = measured_points(rows, [curve])
    show(curve, lambda: curve_text(curve, points[0]), given, measured=points)
    warn(curve.warnings)


def workload(given: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `predict` and `compare` from the workload flags."""
    return {
        "concurrency": numbers("concurrency", given["concurrency"]),
        "input_tokens": given["input_tokens"],
        "output_tokens": given["output_tokens"],
        "arrival": given["arrival"],
    }


def measured_rows(path: str | None) -> list[dict[str, str]]:
    """Rows of the CSV of ``--measured``."""
    if path is None:
        return []
    from perfmodel.report.measured import read_rows

    return read_rows(path)


def measured_points(rows: list[dict[str, str]], curves: list[ServingCurve]) -> dict[int, list[Point]]:
    """Measured points by the place of the curve whose conditions they share; how many is said on stderr."""
    if not rows:
        return {i: [] for i in range(len(curves))}
    from perfmodel.report.measured import matching

    points = {i: matching(rows, c.deployment, c.input_tokens, c.output_tokens) for i, c in enumerate(curves)}
    count = sum(map(len, points.values()))
    warn([f"{count} points from {len(rows)} rows were measured under these conditions"], "measured")
    return points
