"""Weights in another format than the model file says."""

from __future__ import annotations

from perfmodel.catalog import Format, ModelArch
from perfmodel.errors import UnknownName

QUANTIZED_ROLES = ("experts", "shared", "dense", "attention")


def _format(bits: float, group: int | None = None, scale_bits: int = 0, zero_bits: int = 0) -> Format:
    return Format(bits=bits, group=group, scale_bits=scale_bits, zero_bits=zero_bits, source_kind="datasheet")


# Formats as their makers define them. GPTQ and AWQ: group 128, FP16 scale, 4-bit zero point (AutoGPTQ, AutoAWQ
# defaults); fp8: one FP32 scale per 128 x 128 block (DeepSeek-V3, arXiv:2412.19437, section 3.3.2); nvfp4: FP8 scale
# per 16; mxfp4: E8M0 scale per 32 (OCP Microscaling v1.0, section 5); int8: one scale a channel, negligible.
FORMATS = {
    "bf16": _format(bits=16),
    "fp16": _format(bits=16),
    "fp8": _format(bits=8, group=128 * 128, scale_bits=32),
    "int8": _format(bits=8),
    "int4": _format(bits=4, group=128, scale_bits=16),
    "gptq": _format(bits=4, group=128, scale_bits=16, zero_bits=4),
    "awq": _format(bits=4, group=128, scale_bits=16, zero_bits=4),
    "nvfp4": _format(bits=4, group=16, scale_bits=8),
    "mxfp4": _format(bits=4, group=32, scale_bits=8),
}


def storage_formats(
    model: ModelArch,
    quantization: str | None,
) -> tuple[dict[str, tuple[str, Format]], tuple[str, ...]]:
    """Format of every role, as (name, Format), and the assumptions made.

    ``None`` keeps the file's formats; so does a width that the experts (or the default) already have.
    """
    own = {role: (name, model.formats[name]) for role, name in model.storage.items()}
    if quantization is None:
        return own, ()
    if quantization not in FORMATS:
        raise UnknownName("quantization", quantization, FORMATS)
    main = (own.get("experts") or own.get("dense") or own["default"])[1]
    wanted = FORMATS[quantization]
    if main.bits == wanted.bits and quantization in ("int4", "int8", "fp8", "bf16", "fp16"):
        return own, (f"quantization={quantization}: the model's own format has {main.bits:g} bits and is kept",)
    kept = ("default", "embedding", "head", "vision", "indexer")  # exceptions of the file's own format do not hold
    changed = {role: form for role, form in own.items() if role in kept}
    for role in QUANTIZED_ROLES:
        changed[role] = (quantization, wanted)
    return changed, (
        f"quantization={quantization}: experts, MLP and attention projections so; the rest as in the file",
    )
