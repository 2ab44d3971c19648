"""Power of a GPU during a job: by load where it was measured, else a share of the board limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.catalog.base import Power as Figure
from perfmodel.costs.energy import board_power
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, is_number, shown
from perfmodel.placement import place
from perfmodel.serving import ServingCurve
from perfmodel.step.memory import kv_pool, running_limit
from perfmodel.step.slots import occupancy

# Shares of the limit where nothing was measured. Kind: assumed, between the two boards that were: RTX PRO 6000 Server
# 0.14, 0.72 and 0.83, H200 SXM 0.17, 0.95 and 0.99.
SHARES = {"waiting": 0.16, "memory": 0.83, "compute": 0.9}
# Deviation of the logarithm. Decode on an H200 drew 477 to 693 W where the measured figures give 551 to 628; the case's
# pipeline drew 150 to 200 W where they give 109 to 127; two other decode runs on that board drew 246 and 300 W a GPU
# where a busy sweep drew 346.
MEASURED_SD, ASSUMED_SD, GIVEN_SD = 0.25, 0.5, 0.05
BUSY = {"memory traffic": "memory", "arithmetic": "compute", "prefill of others": "compute"}


@dataclass(frozen=True)
class Draw:
    """Watts of one GPU while it serves, and while it waits or loads; ``sd`` is of the logarithm."""

    serving_W: float
    waiting_W: float
    sd: float
    notes: tuple[str, ...]


def draw_of(deployment: Deployment, curve: ServingCurve, arrival: str, gpu_power: float | None = None) -> Draw:
    """Power at the first point of a curve: what share of a step each GPU spends in products of either bound.

    In a pipeline a GPU works on each slot for its own stage only. Communication, kernel starts and the host's turn
    count as waiting.
    """
    options, gpu = deployment.options, deployment.accelerator
    limit = float(options.power_limit or gpu.power.limit.value or 0.0)
    watts, known = _figures(gpu.power, limit)
    if gpu_power is not None:
        if not is_number(gpu_power) or not 0 < gpu_power <= 1e5:
            raise BadInput(f"gpu_power must lie above 0 and at most 1e5 watts, not {shown(gpu_power)}")
        note = f"power while serving: {gpu_power:g} W a GPU (given)"
        return Draw(float(gpu_power), watts["waiting"], GIVEN_SD, (note,))
    seconds = {name: float(values[0]) for name, values in curve.parts.items()}
    used = _slots(deployment, float(curve.running[0]), arrival) / options.pp
    share = {"memory": 0.0, "compute": 0.0}
    for name, kind in BUSY.items():
        share[kind] += seconds.get(name, 0.0) / max(sum(seconds.values()), 1e-12) * min(used, 1.0)
    total = sum(share.values())
    share = {kind: value / max(total, 1.0) for kind, value in share.items()}
    serving = float(
        board_power(watts["waiting"], share["memory"], watts["memory"], share["compute"], watts["compute"], limit)
    )
    kind = "measured on this board" if known else "assumed as shares of the limit: never measured on this board"
    note = (
        f"power while serving: {serving:.0f} W of {limit:.0f} W a GPU, {watts['waiting']:.0f} W waiting, "
        f"{watts['memory']:.0f} W reading weights for {share['memory']:.0%} of the time ({kind})"
    )
    return Draw(serving, watts["waiting"], MEASURED_SD if known else ASSUMED_SD, (note,))


def _figures(power: object, limit: float) -> tuple[dict[str, float], bool]:
    """Watts by load, none above the limit, and whether all of them were measured."""
    found: dict[str, float] = {}
    known = True
    for name, share in SHARES.items():
        figure = getattr(power, name)
        if isinstance(figure, Figure) and figure.value is not None:
            found[name] = min(float(figure.value), limit)
        else:
            found[name], known = share * limit, False
    return found, known


def _slots(deployment: Deployment, running: float, arrival: str) -> float:
    """Pipeline slots that hold sequences; one without a pipeline."""
    placement = place(deployment)
    each = max(running / deployment.options.dp, 1.0)
    slots = occupancy(deployment, np.array([each]), running_limit(placement, kv_pool(placement)), arrival)
    return float(np.sum(slots.count))
