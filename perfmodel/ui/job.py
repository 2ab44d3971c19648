"""How long a batch job takes with each strategy: wall time with its band, GPU-hours, energy, money."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.errors import PerfModelError
from perfmodel.planner import Job
from perfmodel.report.job_text import duration
from perfmodel.report.layout import number
from perfmodel.ui import ask, pictures
from perfmodel.ui.address import View, checked
from perfmodel.ui.compare import heading
from perfmodel.ui.session import keep, options, widget
from perfmodel.ui.words import listed, plain, refused, table

SAMPLES = [100, 1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 900_000, 1_000_000, 10_000_000]
FLIGHTS = [0, 1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096]


def show(view: View) -> None:
    """Size of the job, then every strategy's answer."""
    import streamlit as st

    heading(view)
    view = keep(checked(_controls(view)))
    found: list[tuple[str, Job]] = []
    for answer in ask.answers(view):
        if answer.refusal is not None:
            refused(answer.refusal, answer.label)
            continue
        try:
            with st.spinner(f"Sizing {plain(answer.label)}"):
                found.append((answer.label, ask.job(view, answer.text)))
        except PerfModelError as error:
            refused(error, answer.label)
    if not found:
        return
    found.sort(key=lambda pair: pair[1].makespan_s)
    st.markdown(_table(found))
    left, right = st.columns(2)
    with left:
        st.markdown("**Wall time by what it goes to**")
        st.image(pictures.jobs(tuple(found)), width="stretch", alt="Wall time of the job with each strategy")
    with right:
        st.markdown(f"**Course of the job: {plain(found[0][0])}**")
        st.image(pictures.course(found[0][1]), width="stretch", alt="Tokens/s and running requests over time")
    notes = dict.fromkeys(note for _, one in found for note in one.assumptions)
    with st.expander(f"What this assumes: {len(notes)} points"):
        st.markdown(listed(notes))


def _controls(view: View) -> View:
    import streamlit as st

    columns = st.columns(4)
    samples = columns[0].select_slider("Samples", options("samples", SAMPLES, view.samples),
                                       key=widget("samples", view.samples), format_func="{:,}".format)  # fmt: skip
    at_once = columns[1].select_slider("In flight at once", options("at-once", FLIGHTS, view.at_once),
                                       key=widget("at-once", view.at_once),
                                       format_func=lambda n: f"{n:,}" if n else "all")  # fmt: skip
    restarts = columns[2].number_input("Restarts", 0, 1_000_000, key=widget("restarts", view.restarts))
    price = columns[3].number_input("Price of a GPU-hour", 0.0, 1e6, key=widget("price", view.price), step=0.1)
    return replace(view, samples=samples, at_once=at_once, restarts=restarts, price=price)


def _table(found: list[tuple[str, Job]]) -> str:
    priced = any(job.cost is not None for _, job in found)
    head = ["strategy", "wall time", "80 % band", "tokens/s", "GPU-hours", "kWh", *(["cost"] if priced else [])]
    rows = []
    for label, job in found:
        band = f"{duration(job.makespan_s_low)} to {duration(job.makespan_s_high)}"
        row = [label, duration(job.makespan_s), band, number(job.output_tok_s), f"{job.gpu_hours:,.0f}",
               f"{job.energy_kwh:,.0f}"]  # fmt: skip
        rows.append([*row, *([number(job.cost)] if priced else [])])
    return table(head, rows)
