"""A benchmark or a start-up log beside the prediction, and factors fitted to the benchmark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.insight.log_terms import culprit, terms
from perfmodel.report.layout import number
from perfmodel.ui import ask, pictures, uploads
from perfmodel.ui.address import View
from perfmodel.ui.compare import assumptions, heading
from perfmodel.ui.session import change, keep, widget
from perfmodel.ui.words import plain, refused, table

HELP = """Drop the results of your own benchmark, one file or several, to see predicted against measured and to
recalibrate: `vllm bench`, SGLang's `bench_serving`, GuideLLM, AIPerf, llama-bench, or a CSV with the columns
`concurrency` and `output_tok_s` (or `tpot_ms`), `input_tokens`, `output_tokens`. Or drop the start-up log of vLLM,
SGLang or TensorRT-LLM: its memory lines are set beside the prediction."""
WORDS = {"tpot": "time per output token", "rate": "output rate", "step": "decode step", "prefill": "prefill",
         "batch": "static batch"}  # fmt: skip


def show(view: View) -> None:
    """Drop a file, say what it was measured on, see how far the prediction is off."""
    import streamlit as st

    heading(view)
    texts = ask.strategies_of(view)
    view = _drop(view)
    if not (view.measured or view.log):
        return
    labels = dict(zip(texts, (answer.label for answer in ask.answers(view)), strict=True))
    on = st.selectbox("Measured on", range(len(texts)), format_func=lambda i: labels[texts[i]],
                      key=widget(f"on-{len(texts)}", min(view.on, len(texts) - 1)),
                      help="The strategies are those of the page Compare.")  # fmt: skip
    view = keep(replace(view, on=on or 0))
    if view.measured:
        _benchmark(view)
    if view.log:
        _log(view)
    assumptions([answer for answer in ask.answers(view) if answer.text == texts[view.on]])


def _drop(view: View) -> View:
    import streamlit as st

    if view.measured or view.log:
        if st.button("Drop another file", key=widget("drop-measured")):
            change(replace(view, measured="", log="", fit=False))
        return view
    st.markdown(HELP)
    results = st.file_uploader("Results of a benchmark", ["json", "jsonl", "csv", "md"], True, widget("upload-results"))
    log = st.file_uploader("Start-up log", ["log", "txt", "out"], key=widget("upload-log"))
    try:
        if results:
            packed = uploads.pack_benchmark([file.getvalue() for file in results])
            found = ask.fitted(replace(view, measured=packed))
            change(replace(view, measured=uploads.shortened(packed, found.rows)))
        if log:
            change(replace(view, log=uploads.pack_log(log.getvalue())))
    except PerfModelError as error:
        refused(error)
    return view


def _benchmark(view: View) -> None:
    import streamlit as st

    fit = st.toggle("Recalibrate: fit the factors to these rows, and predict with them on all pages",
                    key=widget("fit", view.fit))  # fmt: skip
    view = keep(replace(view, fit=fit))
    with st.spinner("Fitting"):
        found = ask.fitted(view)
    answer = found.to_dict()
    errors = f"Median error {100 * answer['median_error_before']:.1f} % with the shipped factors"
    errors += f", {100 * answer['median_error_after']:.1f} % with the fitted ones, on these same rows" if fit else ""
    st.markdown(f"{len(found.rows)} rows. {errors}.")
    left, right = st.columns(2)
    with left:
        st.image(pictures.scatter(found, fit), width="stretch", alt="Predicted over measured tokens/s")
    with right:
        _curve(view, found)
    st.dataframe([_row(row, fit) for row in answer["rows"]], hide_index=True, width="stretch")
    if fit:
        _fit(answer, ask.calibration_yaml(found))
    for note in answer["assumptions"]:
        st.caption(f"assumed: {plain(note)}")


def _curve(view: View, found: Any) -> None:
    """The curve of the measured strategy with its band, and the measured points."""
    import streamlit as st

    drawn = ask.measured_curve(view, found)
    if drawn is None:
        return
    curve, kind, points = drawn
    if kind == "rate":
        st.image(pictures.throughput((curve,), (), points), width="stretch", alt="Output tokens/s over concurrency")
    else:
        st.image(pictures.latency((curve,), "tpot_s", points), width="stretch", alt="TPOT over concurrency")
    st.caption(f"Curve and points at {curve.input_tokens:g} tokens in, {curve.output_tokens:g} out; band 80 %.")


def _row(row: dict[str, Any], fit: bool) -> dict[str, object]:
    measured = row["measured_tok_s"]
    figures = {"shipped": row["before_tok_s"], **({"fitted": row["after_tok_s"]} if fit else {})}
    return {
        "row": WORDS.get(row["kind"], row["kind"]),
        "in flight": row["load"],
        "tokens in": round(row["input_tokens"], 1),
        "tokens out": round(row["output_tokens"], 1),
        "measured tok/s": round(measured, 1),
        **{f"{name} tok/s": round(value, 1) for name, value in figures.items()},
        **{f"{name} off by": f"{100 * (value / measured - 1):+.1f} %" for name, value in figures.items()},
    }


def _fit(answer: dict[str, Any], written: str) -> None:
    """What the fit changed, what it could not tell apart, what to measure next, and the file of it."""
    import streamlit as st

    use = "On the command line: --calibration own-benchmark.yaml"
    st.download_button("Save the calibration (.yaml)", written, "own-benchmark.yaml", "text/yaml",
                       key=widget("save-fit"), help=use)  # fmt: skip
    rows = [[p["name"], f"{p['prior_value']:.3g}", f"{p['value']:.3g}",
             "at its bound" if p["at_bound"] else "" if p["identified"] else "not told apart"]
            for p in answer["parameters"]]  # fmt: skip
    with st.expander(f"Factors: {len(rows)} fitted"):
        st.markdown(table(["factor", "shipped", "fitted", ""], rows))
    for note in answer["warnings"]:
        st.caption(f":material/warning: {plain(note)}")


def _log(view: View) -> None:
    """Every figure of the log beside ours."""
    import streamlit as st

    log = uploads.log(view.log)
    report = next(a.memory for a in ask.answers(view) if a.text == ask.measured_strategy(view))
    if report is None:
        st.error("The strategy that the log is said to come from is refused; choose another one above.")
        return
    found = terms(report, log)
    st.markdown(f"Start-up log of **{plain(log.engine or 'an unknown engine')} {plain(log.version)}**")
    rows = []
    for term in found:
        name = f"{term.name} [{term.unit}]" if term.unit else term.name
        difference = f"{round(term.difference, 2) + 0.0:+,.{0 if term.unit == 'tokens' else 2}f}"
        rows.append([name, number(term.logged, 4), number(term.predicted, 4), difference])
    st.markdown(table(["", "logged", "predicted", "difference"], rows))
    worst = culprit(found)
    if worst is not None:
        st.markdown(f"What differs most: **{plain(worst.name)}**, {worst.difference:+.2f} {worst.unit}.")
    o = report.deployment.options
    if (log.engine and log.engine != o.engine) or (log.version and log.version != o.version):
        st.warning(f"The log is of {plain(log.engine)} {plain(log.version)}, predicted are the rules of {o.engine} "
                   f"{plain(o.version)}: choose engine and version in the sidebar.")  # fmt: skip
