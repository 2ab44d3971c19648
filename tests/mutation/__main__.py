"""``python -m tests.mutation``: mutate a copy of the tree with mutmut 3, test each mutant, and count."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from math import sqrt
from pathlib import Path

import click

from .limits import BREADTH

ROOT = Path(__file__).parents[2]
COPIED = ("perfmodel", "hardware", "models", "tests")


@click.command(context_settings={"max_content_width": 100})
@click.option("--sample", "size", default=300, show_default=True, help="mutants of a room; 0: all of them")
@click.option("--seed", default=1, show_default=True)
@click.option("--room", "rooms", multiple=True, help="only this one; repeatable  [default: costs, placement, engines]")
@click.option("--out", default=ROOT / "build" / "mutation", type=click.Path(path_type=Path), help="copy and results")
@click.option("--survivors", is_flag=True, help="only those of the sample that are not killed so far")
@click.option("--report-only", is_flag=True, help="run nothing, print what the last run found")
def main(size: int, seed: int, rooms: tuple[str, ...], out: Path, survivors: bool, report_only: bool) -> None:
    """Exit code 1: a room has fewer than 85 % of its mutants killed."""
    out = out.resolve()
    if not (survivors or report_only):
        shutil.rmtree(out / "mutants", ignore_errors=True)  # mutmut keeps the head of a file that changed below it
    if not report_only:
        _copy(out)
    os.chdir(out)  # where mutmut looks for its settings
    from .sample import ROOMS, mutants, sample

    if not report_only:
        _mutmut([next(name for names in mutants(out, "costs").values() for name in names)])
        _choose(out)        # that run has recorded which tests reach which function, and written all mutants
    chosen = {}
    for room in rooms or ROOMS:
        files = mutants(out, room)
        every = sum(map(len, files.values()))
        chosen[room] = every, sample(files, size or every, seed)
    names = [name for _, some in chosen.values() for name in some]
    if survivors:
        killed = _status(out, "killed")
        names = [name for name in names if name not in killed]
    if not report_only:
        _mutmut(names)
    sys.exit(0 if _report(out, chosen) else 1)


def _copy(out: Path) -> None:
    """A copy of what the tests need."""
    out.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.rmtree(out / name, ignore_errors=True)
        shutil.copytree(ROOT / name, out / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", out)
    here = Path(__file__).parent
    shutil.copy2(here / "setup.cfg", out)
    shutil.copy2(here / "limits.py", out / "conftest.py")


def _mutmut(names: list[str]) -> None:
    command = [Path(sys.executable).with_name("mutmut"), "run", "--max-children", "1", *names]
    if subprocess.call(command, env=os.environ | {"CI": "1", "MPLBACKEND": "Agg"}):
        sys.exit("mutmut stopped: does the list of tests in setup.cfg pass without a mutant?")


def _choose(out: Path) -> None:
    """Of the tests that reach a function keep the 40 that reach the fewest others, and 40 at even distances beyond."""
    path = out / "mutants" / "mutmut-stats.json"
    stats = json.loads(path.read_text())
    took, reach = stats["duration_by_test"], stats["tests_by_mangled_function_name"]
    breadth = Counter(test for tests in reach.values() for test in tests)
    for name, tests in reach.items():
        tests = sorted(tests, key=lambda test: (breadth[test], took.get(test, 0.0), test))
        reach[name] = tests[:40] + tests[40 :: max(1, len(tests[40:]) // 40)][:40]
    path.write_text(json.dumps(stats))
    path.with_name(BREADTH).write_text(json.dumps(breadth))


def _status(out: Path, *wanted: str) -> dict[str, str]:
    """Status of each mutant that was tried, of the wanted kinds if given."""
    from mutmut.stats import status_by_exit_code

    found = {}
    for meta in (out / "mutants").glob("perfmodel/**/*.meta"):
        for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            if code is not None and (not wanted or status_by_exit_code[code] in wanted):
                found[name] = status_by_exit_code[code]
    return found


def _report(out: Path, chosen: dict[str, tuple[int, list[str]]]) -> bool:
    """Print a table as docs/mutation.md has it, then the difference of each mutant that lives."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    status, good, alive = _status(out), True, []
    print("| room | mutants | tried | killed | timeout | survived | no test | killed or timeout | 95 % interval |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for room, (every, names) in chosen.items():
        is_now = [status[name] for name in names if name in status]
        killed, timeout, none = (is_now.count(word) for word in ("killed", "timeout", "no tests"))
        share = (killed + timeout) / max(1, len(is_now))
        low, high = wilson(killed + timeout, len(is_now))
        print(f"| {room} | {every} | {len(is_now)} | {killed} | {timeout} | {len(is_now) - killed - timeout - none} "
              f"| {none} | {share:.1%} | {low:.1%} to {high:.1%} |")
        good &= share >= 0.85
        alive += [name for name in names if status.get(name, "killed") not in ("killed", "timeout")]
    for name in alive:
        print(f"\n{name}: {status[name]}")
        lines = get_diff_for_mutant(name).splitlines()[2:]
        print("\n".join(line for line in lines if line.startswith(("-", "+"))))
    return good


def wilson(hits: int, tries: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share, Wilson's."""
    if not tries:
        return 0.0, 1.0
    share, weight = hits / tries, z * z / tries
    middle, half = share + weight / 2, z * sqrt(share * (1 - share) / tries + weight / (4 * tries))
    return (middle - half) / (1 + weight), (middle + half) / (1 + weight)


if __name__ == "__main__":
    main()
