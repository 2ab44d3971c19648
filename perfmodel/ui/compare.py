"""Strategies side by side: does each fit, how fast is it, and how is it launched."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfmodel.cli.compare import default_strategies
from perfmodel.report.layout import no_fit, number, span
from perfmodel.serving import Comparison
from perfmodel.ui import ask, pictures
from perfmodel.ui.address import MOST_STRATEGIES, SLIDERS, View, checked, keywords, strategy_text
from perfmodel.ui.ask import Answer
from perfmodel.ui.session import change, keep, options, widget
from perfmodel.ui.words import NO_BREAK, listed, plain, refused

KV = ["auto", "bf16", "fp8"]
OWN = "engine's own"
FRACTIONS = [OWN, *(i / 100 for i in range(50, 100))]
DEGREES = {"tp": "Tensor parallel", "pp": "Pipeline stages", "ep": "Expert parallel", "dp": "Copies",
           "dp_attention": "Attention groups"}  # fmt: skip
FIGURES = (("output_tok_s", "tokens/s"), ("tpot_ms", "ms TPOT"), ("ttft_ms", "ms TTFT"))
_CURE = re.compile(r"(\w+=[\w.]+) fits\b")


def show(view: View) -> None:
    """Controls and verdicts of all strategies, then pictures, figures, commands and assumptions."""
    import streamlit as st

    heading(view)
    view = _how_many(view)
    texts = []
    for i, column in enumerate(st.columns(len(view.strategies))):
        with column.container(border=True):
            head = st.container()  # the verdict stands above the sliders, and is known below them
            text = _sliders(i, view.strategies[i], ask.node_of(view).count)
            texts.append((head, text))
    view = keep(checked(replace(view, strategies=tuple(text for _, text in texts))))
    found = ask.answers(view)
    for i, ((head, _), answer) in enumerate(zip(texts, found, strict=True)):
        with head:
            _verdict(view, i, answer)
    comparison = ask.comparison(found)
    if comparison is not None:
        _pictures(found, comparison)
        _figures(comparison, found)
        _commands(view, found)
        assumptions(found)


def heading(view: View) -> None:
    """What is asked about."""
    import streamlit as st

    st.subheader(f"{plain(ask.model_of(view).name)} on {plain(ask.node_of(view).name)}", anchor=False)
    name, _, version = view.engine.partition("==")
    engine = f"{name} {version or '(newest known)'}"
    fitted = "; factors fitted to your benchmark" if view.fit and view.measured else ""
    st.caption(plain(f"{engine}; {view.input_tokens} tokens in, {view.output_tokens} out; context "
                     f"{f'{view.context:,}' if view.context else 'of the model'}{fitted}"))  # fmt: skip


def _how_many(view: View) -> View:
    """The view with as many strategies as are asked for."""
    import streamlit as st

    texts = ask.strategies_of(view)
    asked = st.segmented_control("Strategies side by side", range(1, MOST_STRATEGIES + 1),
                                 key=widget("count", len(texts)))  # fmt: skip
    count = asked or len(texts)
    if count > len(texts):
        usual = [text for text, _ in default_strategies(ask.node_of(view).count)]
        texts = (*texts, *(text for text in usual if text not in texts), *usual)
    return replace(view, strategies=texts[:count])


def _sliders(i: int, text: str, gpus: int) -> str:
    """The text of a strategy as its sliders stand."""
    import streamlit as st

    given = keywords(text)
    degrees = [n for n in range(1, gpus + 1) if n <= 8 or gpus % n == 0]
    with st.expander("Change", expanded=not _on_a_phone()):
        for name in SLIDERS:
            value = int(given.pop(name, 1))
            key = f"{name}-{i}-of-{gpus}"
            known = options(key, degrees, value)
            if len(known) > 1:
                value = st.select_slider(DEGREES[name], known, key=widget(key, value))
            given[name] = value
        kv, fraction = given.pop("kv_dtype", "auto"), given.pop("memory_fraction", OWN)
        kv = st.selectbox("KV cache", options(f"kv-{i}", KV, kv), key=widget(f"kv-{i}", kv))
        listed_ = options(f"fraction-{i}", FRACTIONS, fraction) if fraction in FRACTIONS else [OWN, fraction]
        fraction = st.select_slider("Memory fraction", listed_, key=widget(f"fraction-{i}", fraction))
        rest = {name: given.pop(name) for name in list(given) if name not in SLIDERS}
        written = strategy_text(rest) if rest else ""
        other = st.text_input("Other settings", key=widget(f"other-{i}", written), placeholder="cuda_graphs=off,...",
                              help="Keywords as in --strategy of the command line.")  # fmt: skip
    set_here = {**given, "kv_dtype": kv, "memory_fraction": None if fraction == OWN else fraction}
    return strategy_text({**set_here, **keywords(other or "")})


def _on_a_phone() -> bool:
    import streamlit as st

    return "Mobi" in st.context.headers.get("User-Agent", "")


def _verdict(view: View, i: int, answer: Answer) -> None:
    """Name, whether it fits, what would help, and the figures at the largest concurrency."""
    import streamlit as st

    st.subheader(plain(answer.label), anchor=False)
    if answer.refusal is not None or answer.memory is None or answer.curve is None:
        if answer.refusal is not None:
            refused(answer.refusal)
        return
    report, point = answer.memory, answer.curve.points[-1]
    if report.fits:
        st.badge("fits", icon=":material/check:", color="green")
        st.caption(f"{report.kv_tokens_total:,} KV tokens, {report.max_sequences_at_context:,} full sequences at once")
    else:
        st.badge(no_fit(report.verdict), icon=":material/close:", color="red")
        st.caption(f"rank {report.binding_rank} binds: {plain(report.pool.reason)}")
        for k, hint in enumerate(report.hints[:2]):
            _cure(view, i, k, hint)
    st.caption(f"At {view.concurrency:,} in flight, with 80 % bands; bound by {point['bound_by']}:")
    st.markdown("  \n".join(_with_band(point, name, unit) for name, unit in FIGURES))
    for warning in answer.curve.warnings:
        st.caption(f":material/warning: {plain(warning)}")


def _with_band(point: dict[str, Any], name: str, unit: str) -> str:
    band = span(point[f"{name}_low"], point[f"{name}_high"])
    return f"**{number(point[name])}** {unit}, {band.replace('-', NO_BREAK)}"


def _cure(view: View, i: int, k: int, hint: str) -> None:
    """A hint, as a button where one setting does it."""
    import streamlit as st

    match = _CURE.match(hint)
    if match is None:
        st.caption(f"hint: {plain(hint)}")
    elif st.button(plain(hint), key=widget(f"cure-{i}-{k}"), help=f"Set {match[1]}"):
        texts = list(view.strategies)
        texts[i] = strategy_text({**keywords(texts[i]), **keywords(match[1])})
        change(replace(view, strategies=tuple(texts)))


def _pictures(found: Sequence[Answer], comparison: Comparison) -> None:
    """Curves over concurrency, then the memory of each strategy; two in a row where there is room."""
    import streamlit as st

    curves, reports = comparison.curves, comparison.memories
    titled = [("Output tokens/s, all GPUs; bands 80 %", pictures.throughput(curves, reports)),
              ("Time per output token (TPOT)", pictures.latency(curves, "tpot_s")),
              ("Time to first token (TTFT)", pictures.latency(curves, "ttft_s"))]  # fmt: skip
    titled += [(f"Memory of a GPU: {a.label}", pictures.memory(a.memory)) for a in found if a.memory is not None]
    for pair in (titled[i : i + 2] for i in range(0, len(titled), 2)):
        for column, (title, picture) in zip(st.columns(2), pair, strict=False):
            with column:
                st.markdown(f"**{plain(title)}**")
                st.image(picture, width="stretch", alt=title)


def _figures(comparison: Comparison, found: Sequence[Answer]) -> None:
    """Every point of every curve as a table that can be downloaded."""
    import streamlit as st

    names = [answer.label for answer in found if answer.curve is not None]
    rows: list[dict[str, Any]] = []
    for name, curve in zip(names, comparison.curves, strict=True):
        rows += [{"strategy": name, **{key: value for key, value in point.items() if key != "parts"}}
                 for point in curve.points]  # fmt: skip
    with st.expander("All figures"):
        st.dataframe(rows, hide_index=True, width="stretch")


def _commands(view: View, found: Sequence[Answer]) -> None:
    """How each strategy is launched, and the same question on the command line."""
    import streamlit as st

    st.markdown("**Launch**")
    if view.config:
        st.caption(f"Put the path of the checkpoint in place of {plain(ask.model_of(view).name)}.")
    for answer in found:
        if answer.deployment is not None:
            st.caption(plain(answer.label))
            st.code(answer.deployment.command(), language="sh", wrap_lines=True)
    if not (view.config or view.machine or view.fit):
        words = ["perfmodel", "compare", "--model", view.model, "--node", view.node, "--engine", view.engine]
        words += [word for text in view.strategies for word in ("--strategy", text)]
        words += ["--context", str(view.context)] if view.context else []
        words += ["--concurrency", ",".join(map(str, ask.flights(view.concurrency)))]
        words += ["--input-tokens", view.input_tokens, "--output-tokens", view.output_tokens]
        st.caption("This comparison on the command line")
        st.code(shlex.join(words), language="sh", wrap_lines=True)


def assumptions(found: Sequence[Answer]) -> None:
    """What the answers rest on: shared by all, then by some."""
    import streamlit as st

    curves = [(answer.label, answer.curve) for answer in found if answer.curve is not None]
    makers: dict[str, list[str]] = {}
    for label, curve in curves:
        for note in curve.assumptions:
            makers.setdefault(note, []).append(label)
    shared = [note for note, who in makers.items() if len(who) == len(curves)]
    some = [f"{note} ({', '.join(who)})" for note, who in makers.items() if len(who) < len(curves)]
    with st.expander(f"What this assumes: {len(makers)} points"):
        st.markdown(listed([*shared, *some]))
