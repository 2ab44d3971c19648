"""From a view to answers: the calls that the command line makes, each made once for the same question."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import perfmodel as pm
from perfmodel.catalog import ModelArch, Node, load_model, load_node, names
from perfmodel.catalog.lookup import find
from perfmodel.catalog.synthesis import split_name
from perfmodel.cli.compare import default_strategies
from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import IllegalDeployment, PerfModelError, UnknownName
from perfmodel.planner import Job, size_job
from perfmodel.report.layout import labels
from perfmodel.serving import Comparison, ServingCurve, predict
from perfmodel.serving.lengths import parse_lengths
from perfmodel.step import MemoryReport, memory
from perfmodel.ui import uploads
from perfmodel.ui.address import DEFAULT, View, keywords

KEPT = 64  # answers kept in memory


@dataclass(frozen=True, eq=False)
class Answer:
    """What is known of one strategy; without a deployment there is a refusal that says why."""

    text: str
    label: str
    deployment: Deployment | None = None
    memory: MemoryReport | None = None
    curve: ServingCurve | None = None
    refusal: PerfModelError | None = None


def model_of(view: View) -> ModelArch:
    """The model: an uploaded one, else one of the catalog. A path or an id of the hub is neither."""
    if view.config:
        return uploads.model(view.config)
    if "\0" in view.model or find("model", view.model) is None:
        raise UnknownName("model", view.model, names("model"))
    return load_model(Path(find("model", view.model) or view.model))


def node_of(view: View) -> Node:
    """The node: an uploaded one, else one of the catalog or ``Nx-<accelerator>``; never a path."""
    if view.machine:
        return uploads.node(view.machine)
    path = find("node", view.node)
    if path is not None:
        return load_node(path)
    wanted = split_name(view.node)
    if wanted is None or find("accelerator", wanted[1]) is None:
        raise UnknownName("node", view.node, names("node"))
    return load_node(f"{wanted[0]}x-{wanted[1]}")


def strategies_of(view: View, most: int = 3) -> tuple[str, ...]:
    """The strategies of a view; where it names none, the first usual ones of its node that the engine runs."""
    if view.strategies:
        return view.strategies
    count = node_of(view).count
    usual = [text for text, _ in default_strategies(count)]
    legal = [text for text in usual if not isinstance(_refusal(view, text), IllegalDeployment)]
    return tuple(legal[:most]) or (usual[0],)


def _refusal(view: View, text: str) -> PerfModelError | None:
    try:
        _deployment(_base(view), text, None)
    except PerfModelError as error:
        return error
    return None


def _base(view: View) -> View:
    """The part of a view that its deployments depend on, beside their strategies; equal parts are equal keys."""
    named = ("model", "config", "node", "machine", "engine", "context")
    return replace(DEFAULT, **{name: getattr(view, name) for name in named})


@dataclass(frozen=True)
class Benchmark:
    """Uploaded results, the strategy that they were measured on, and the lengths where they do not say any."""

    text: str
    packed: str
    input_tokens: float
    output_tokens: float


def benchmark(view: View) -> Benchmark | None:
    """The benchmark of a view; the lengths that it does not say are those of the sidebar."""
    if not view.measured:
        return None
    lengths = (parse_lengths(text).mean for text in (view.input_tokens, view.output_tokens))
    return Benchmark(measured_strategy(view), view.measured, *lengths)


def measured_strategy(view: View) -> str:
    """The text of the strategy that the uploaded files were measured on."""
    known = strategies_of(view)
    return known[min(view.on, len(known) - 1)]


def _fit(view: View) -> Benchmark | None:
    return benchmark(view) if view.fit else None


def deployment_of(view: View, text: str) -> Deployment:
    """The deployment of one strategy, with the fitted factors where the view asks for them."""
    return _deployment(_base(view), text, _fit(view))


@lru_cache(maxsize=KEPT)
def _deployment(base: View, text: str, fit: Benchmark | None) -> Deployment:
    if fit is None:
        return _deploy(base, text, None)
    with tempfile.TemporaryDirectory(prefix="perfmodel-") as folder:
        file = Path(folder, "own-benchmark.yaml")
        _fitted(base, fit).save(file)
        return _deploy(base, text, str(file))


def _deploy(base: View, text: str, calibration: str | None) -> Deployment:
    given = keywords(text)
    engine = given.pop("engine", base.engine)
    context = {"context": base.context} if base.context else {}
    return deploy(model_of(base), node=node_of(base), engine=engine, calibration=calibration, **{**context, **given})


def flights(most: int) -> tuple[int, ...]:
    """Concurrencies of a curve: powers of two and the largest.

    >>> flights(20)
    (1, 2, 4, 8, 16, 20)
    """
    return tuple(sorted({2**i for i in range(20) if 2**i <= most} | {most}))


def answers(view: View) -> list[Answer]:
    """An answer for every strategy, in their order, with labels that tell them apart."""
    found = [_answer(view, text) for text in strategies_of(view)]
    known = [answer.deployment for answer in found if answer.deployment is not None]
    words = iter(labels(known))
    return [replace(a, label=next(words)) if a.deployment is not None else a for a in found]


def _answer(view: View, text: str) -> Answer:
    try:
        d = deployment_of(view, text)
        base, fit = _base(view), _fit(view)
        curve = _curve(base, text, fit, flights(view.concurrency), view.input_tokens, view.output_tokens)
        return Answer(text, d.name, d, _memory(base, text, fit), curve)
    except PerfModelError as error:
        return Answer(text, text, refusal=error)


@lru_cache(maxsize=KEPT)
def _memory(base: View, text: str, fit: Benchmark | None) -> MemoryReport:
    return memory(_deployment(base, text, fit))


@lru_cache(maxsize=KEPT)
def _curve(
    base: View, text: str, fit: Benchmark | None, points: tuple[float, ...], inputs: Any, outputs: Any
) -> ServingCurve:
    return predict(_deployment(base, text, fit), concurrency=points, input_tokens=inputs, output_tokens=outputs)


def comparison(found: list[Answer]) -> Comparison | None:
    """The answers that there are, as the noun that report draws; in the order of the page."""
    kept = [(a.curve, a.memory) for a in found if a.curve is not None and a.memory is not None]
    return Comparison(tuple(curve for curve, _ in kept), tuple(report for _, report in kept)) if kept else None


def fitted(view: View) -> Any:
    """`pm.calibrate` on the uploaded results, for the strategy that they were measured on; None without any."""
    given = benchmark(view)
    return None if given is None else _fitted(_base(view), given)


@lru_cache(maxsize=8)
def _fitted(base: View, given: Benchmark) -> Any:
    deployment = _deployment(base, given.text, None)
    with tempfile.TemporaryDirectory(prefix="perfmodel-") as folder:
        files = [Path(folder, f"benchmark-{i}") for i, _ in enumerate(uploads.benchmark(given.packed), start=1)]
        for file, text in zip(files, uploads.benchmark(given.packed), strict=True):
            file.write_text(text, encoding="utf-8")
        return pm.calibrate(files, deployment=deployment, input_tokens=given.input_tokens,
                            output_tokens=given.output_tokens)  # fmt: skip


def measured_curve(view: View, found: Any) -> tuple[ServingCurve, str, tuple[tuple[float, float], ...]] | None:
    """The curve at the lengths that most rows share, what they measure (rate or tpot), and their points."""
    groups: dict[tuple[str, float, float], list[tuple[float, float]]] = {}
    for row in found.rows:
        if row.kind in ("rate", "tpot"):
            point = 1 / row.seconds if row.kind == "rate" else 1e3 * row.seconds
            groups.setdefault((row.kind, row.input_tokens, row.output_tokens), []).append((row.load, point))
    if not groups:
        return None
    kind, inputs, outputs = max(groups, key=lambda key: len(groups[key]))
    same = groups[kind, inputs, outputs]
    flown = tuple(sorted({*flights(max(1, round(max(load for load, _ in same)))), *(load for load, _ in same)}))
    curve = _curve(_base(view), measured_strategy(view), _fit(view), flown, inputs, outputs)
    return curve, kind, tuple(sorted(same))


def calibration_yaml(found: Any) -> str:
    """The calibration file of a fit, as `perfmodel calibrate --output` writes it."""
    with tempfile.TemporaryDirectory(prefix="perfmodel-") as folder:
        file = Path(folder, "own-benchmark.yaml")
        found.save(file)
        return file.read_text(encoding="utf-8")


def job(view: View, text: str) -> Job:
    """How long the job of the view takes with one strategy."""
    sizes = (view.samples, view.input_tokens, view.output_tokens, view.at_once, view.price, view.restarts)
    return _job(_base(view), text, _fit(view), *sizes)


@lru_cache(maxsize=KEPT)
def _job(
    base: View, text: str, fit: Benchmark | None, samples: int, inputs: str, outputs: str, at_once: int, price: float,
    restarts: int,
) -> Job:  # fmt: skip
    return size_job(
        _deployment(base, text, fit),
        samples=samples,
        input_tokens=inputs,
        output_tokens=outputs,
        concurrency=at_once or None,
        price_per_gpu_hour=price or None,
        restarts=restarts,
    )
