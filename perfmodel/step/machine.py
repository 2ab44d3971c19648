"""The accelerator and the links as the operations see them: peaks, bandwidth, protocols. Plain floats."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from perfmodel.errors import DescriptorError
from perfmodel.placement import Links, Placement, links_of

# Compute falls with the power limit as (P / P_limit)^0.45: gpu_burn 124 against 158 TFLOP/s at 300 and 500 W on the
# RTX PRO 6000 Server, github sjug/rtx6kpro@738985bb hardware/blackwell-power-limit-sweep.md. Kind: derived.
_POWER_EXPONENT = 0.45


@dataclass(frozen=True, slots=True)
class Machine:
    """Peaks as the vendor prints them; no efficiency is folded in."""

    peak: dict[str, float]
    bandwidth_Bps: float
    sms: float
    links: Links

    def peak_of(self, form: str) -> float:
        """Peak of the arithmetic that weights of this format, named as in the catalog, are multiplied in. [FLOP/s]

        FP8 and FP4 formats use their own tensor cores where the device has them; weight-only integer formats are
        multiplied in BF16.
        """
        narrow = self.arithmetic_of(form)
        return self.peak[narrow if narrow in self.peak else "fp16"]

    def arithmetic_of(self, form: str) -> str:
        """Number format in which weights of this format are multiplied here: fp8, int8, fp4, else bf16."""
        return arithmetic(form, self.peak)


def arithmetic(form: str, peaks: Collection[str]) -> str:
    """Number format in which weights of a format are multiplied on a device that has these ``peaks``.

    >>> arithmetic("nvfp4", {"bf16", "fp8"}), arithmetic("fp8-block", {"bf16", "fp8"}), arithmetic("int4-g32", {"bf16"})
    ('bf16', 'fp8', 'bf16')
    """
    wanted = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4", "mxfp4": "fp4"}.get(form.split("-")[0], "bf16")
    if wanted in peaks:
        return wanted
    if "bf16" not in peaks and "fp16" not in peaks:
        raise DescriptorError("this accelerator states no BF16 or FP16 peak")
    return "bf16"


def machine_of(placement: Placement) -> Machine:
    """The machine of a placement, its compute scaled to the power limit if one is set."""
    deployment = placement.deployment
    accelerator, limit = deployment.accelerator, deployment.options.power_limit
    full = accelerator.power.limit.value
    scale = min(1.0, limit / full) ** _POWER_EXPONENT if limit and full else 1.0
    peak = {name: scale * figure.value for name, figure in accelerator.peak.items() if figure.value is not None}
    return Machine(peak, float(accelerator.memory.bandwidth), float(accelerator.sms), links_of(deployment))
