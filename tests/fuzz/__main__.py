"""``python -m tests.fuzz --inputs 2000000 --seed 1``: the long run; a second call with the same seed goes on."""

import resource
import sys
from pathlib import Path

import click

from perfmodel.cli.progress import bar

from .parsers import PARSERS
from .run import Tally, load, numbered, run, save, shares

STEP = 2_000            # inputs between two notes of the counts
MEMORY = 4 * 2**30      # bytes of address space


@click.command(context_settings={"max_content_width": 100})
@click.option("--inputs", default=2_000_000, show_default=True, help="over all parsers, with those done before")
@click.option("--seed", default=1, show_default=True)
@click.option("--parser", "names", multiple=True, type=click.Choice(sorted(PARSERS)), help="only this one; repeatable")
@click.option("--out", default="build/fuzz", show_default=True, type=click.Path(path_type=Path), help="counts, crashes")
@click.option("--show", type=int, help="write the input of this number to stdout and stop; needs one --parser")
def main(inputs: int, seed: int, names: tuple[str, ...], out: Path, show: int | None) -> None:
    """Damage samples and feed them to the parsers. Exit code 1: something else than a value or a refusal came out."""
    wanted = list(names) or list(PARSERS)
    if show is not None:
        sys.stdout.buffer.write(numbered(wanted[0], seed, show, PARSERS[wanted[0]].samples()))
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out.mkdir(parents=True, exist_ok=True)
    state = out / f"seed-{seed}.json"
    done = load(state)
    goals = shares(inputs, wanted)
    with bar("inputs") as advance:
        for name, goal in goals.items():
            tally = done.setdefault(name, Tally())
            while tally.tried < goal:
                tally.add(run(name, seed, tally.tried, min(goal, tally.tried + STEP), out / "crashes"))
                save(state, done)
                advance(sum(min(done[n].tried, goals[n]) for n in wanted if n in done), sum(goals.values()))
    click.echo(report({name: done[name] for name in wanted}))
    sys.exit(1 if any(done[name].failures for name in wanted) else 0)


def report(tallies: dict[str, Tally]) -> str:
    """A table as docs/fuzzing.md has it, and what failed below."""
    rows = ["| parser | inputs | read | inputs/s | slowest, ms |", "|---|---:|---:|---:|---:|"]
    whole = Tally()
    for name, tally in tallies.items():
        whole.add(tally)
        rows.append(_row(name, tally))
    rows.append(_row("all", whole))
    return "\n".join([*rows, *(f"FAILED {count} x {name}: {what}" for name, tally in tallies.items()
                               for what, count in tally.failures.most_common())])


def _row(name: str, tally: Tally) -> str:
    rate = tally.tried / max(tally.seconds, 1e-9)
    return (f"| {name} | {tally.tried:,} | {tally.read / max(tally.tried, 1):.0%} | {rate:,.0f} "
            f"| {1e3 * tally.slowest_s:.0f} |")


if __name__ == "__main__":
    main()
