"""A simulation as text and as a picture of its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.report.layout import heading, launch_line, listed, number, table, wrapped

if TYPE_CHECKING:
    from perfmodel.serving.simulate import Simulation


def simulation_text(run: Simulation, notes: Sequence[str] = (), brief: bool = False, **limits: float) -> str:
    """Rates, percentiles, and goodput where limits are given; unless ``brief``, the launch and what was assumed."""
    answer = run.to_dict(**limits)
    lines = [wrapped(heading(run.deployment), rest="  "), *(wrapped(note, rest="  ") for note in notes), ""]
    columns = ("mean", "p50", "p90", "p95", "p99")
    rows = [[f"{name.upper()}, ms", *(_ms(answer[f"{name}_{column}_ms"]) for column in columns)]
            for name in ("ttft", "tpot", "e2e")]  # fmt: skip
    lines += table(["", *columns], rows, left=(0,))
    lines += ["", f"{answer['requests']:,} requests in {number(answer['makespan_s'])} s: "
              f"{number(answer['request_rate'])} requests/s, {number(answer['output_tok_s'])} output tok/s, "
              f"{number(answer['input_tok_s'])} prompt tok/s"]  # fmt: skip
    if run.preemptions:
        lines.append(f"{run.preemptions:,} preemptions: the KV pool was full")
    if run.hit_tokens:
        lines.append(f"prefix cache: {answer['prefix_hit_rate']:.0%} of the prompt tokens found")
    if "goodput_req_s" in answer:
        said = " and ".join(f"{name[:4].upper()} <= {1e3 * value:g} ms" for name, value in limits.items())
        lines.append(f"goodput with {said}: {number(answer['goodput_req_s'])} requests/s, "
                     f"{answer['good_share']:.1%} of all")  # fmt: skip
    lines = [wrapped(line, rest="  ") if len(line) > 80 else line for line in lines]
    more = [] if brief else [*launch_line(run.deployment.command()), *listed("assumptions", run.assumptions)]
    return "\n".join([*lines, *more])


def _ms(value: float | None) -> str:
    return "-" if value is None else number(value)


def plot_timeline(run: Simulation, ax: Any = None, **_: Any) -> Any:
    """Running requests and output tokens/s over time."""
    from perfmodel.report.style import COLOURS, styled, title

    def draw(ax: Any) -> None:
        ax.plot(run.timeline_s, run.timeline_running, color=COLOURS[0], label="running requests")
        ax.set_xlabel("time [s]")
        ax.set_ylabel("running requests [count]")
        other = ax.twinx()
        other.plot(run.timeline_s, run.timeline_tok_s, color=COLOURS[1], linewidth=0.9, linestyle=(0, (4, 1)),
                   label="output tokens/s")  # fmt: skip
        other.set_ylabel("output throughput, all GPUs [tokens/s], dashed")
        other.grid(False)
        other.spines["right"].set_visible(True)
        ax.set_ylim(0, 1.25 * float(max(run.timeline_running)))
        other.set_ylim(0, 1.25 * float(max(run.timeline_tok_s)))
        ax.set_xlim(left=0)
        handles = [*ax.get_lines(), *other.get_lines()]
        ax.legend(handles, [line.get_label() for line in handles], loc="upper right", ncols=2)
        title(ax, heading(run.deployment))

    return styled(draw, ax)
