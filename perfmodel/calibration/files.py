"""Calibration files: written whole or not at all, with the command, versions and hashes that made them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perfmodel.catalog.write import write_whole

if TYPE_CHECKING:
    from perfmodel.calibration.fit import Fit



def entry(value: float, sd: float, kind: str, source: str | None, note: str) -> dict[str, Any]:
    """One parameter as a file states it: to four significant digits, sd to two."""
    return {"value": float(f"{value:.4g}"), "sd": float(f"{sd:.2g}"), "kind": kind, "source": source, "note": note}


def write(path: str | os.PathLike[str], *, name: str, title: str, sources: dict[str, dict[str, str]],
          parameters: dict[str, dict[str, Any]], comment: str = "", **fields: Any) -> None:
    """Write a file of schema calibration/1: to a temporary file beside it, synced, then renamed over it."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += ["schema: calibration/1", f"name: {name}", f"title: {_text(title)}"]
    for key, value in fields.items():
        if value in (None, "", (), {}):
            continue
        several = isinstance(value, (dict, list, tuple))
        lines += [f"{key}:", *_block(value)] if several else [f"{key}: {_flow(value)}"]
    lines += ["", "sources:", *(f"  {key}: {_flow(source)}" for key, source in sources.items())]
    lines += ["", "parameters:", *(f"  {key}: {_flow(_with_unit(key, value))}" for key, value in parameters.items())]
    write_whole(path, "\n".join(lines) + "\n")


def write_fit(fit: Fit, path: str | os.PathLike[str], *, name: str, title: str, source: dict[str, str],
              command: str = "", checked_on: tuple[str, ...] = (), hashes: dict[str, str] | None = None,
              spread: float | None = None, **fields: Any) -> None:
    """A file of one fit's parameters. What the data could not tell apart, and what is at a bound, is stated as such.

    ``spread`` is the residual deviation of its bands, where that is not the one of the fitted rows.
    """
    notes = {n: "the data did not tell this apart from its prior" for n in fit.unidentified}
    notes |= {n: "at its bound" for n in fit.at_bound}
    parameters = {n: entry(v, s, "measured", "data", notes.get(n, ""))
                  for n, v, s in zip(fit.names, fit.values, fit.sd, strict=True)}
    write(path, name=name, title=title, sources={"data": source}, parameters=parameters, command=command,
          fitted_on=fit.fitted_on, checked_on=checked_on, correlations=fit.correlations,
          versions=versions(), hashes=hashes or {}, **fields,
          residual_sd=float(f"{fit.residual_sd if spread is None else spread:.3g}"))


def versions() -> dict[str, str]:
    """What computed a fit."""
    from perfmodel import __version__

    return {"perfmodel": __version__}


def _with_unit(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """Times and sizes with their unit, as descriptors write them."""
    number = value["value"]
    if name.endswith("_s"):
        return {**value, "value": f"{number * 1e6:.4g} us" if number < 1e-4 else f"{number * 1e3:.4g} ms"}
    return {**value, "value": f"{number / 1e6:.4g} MB"} if name.endswith("_bytes") else value


def _block(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"  {_text(str(key))}: {_flow(item)}" for key, item in value.items()]
    return [f"  - {_flow(item)}" for item in value]


def _flow(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items() if item is not None) + "}"
    return f"{value:.6g}" if isinstance(value, float) else _text(str(value))


def _text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
