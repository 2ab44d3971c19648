"""How fast a cold command answers: medians of whole processes, beside a bare ``import numpy``, and what is imported.

    python benchmarks/cold.py [--runs 9]

Prints seconds and ratios; the ratio travels between machines, the seconds do not. Targets on two slow cores:
memory below 0.5 s, seven strategies at eight concurrencies below 1.5 s.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections import Counter

NODE = ["--model", "kimi-k2.6", "--node", "8x-rtx-pro-6000-server", "--engine", "sglang"]
STRATEGIES = ["tp=8", "tp=8,ep=8", "tp=8,ep=4", "pp=8", "tp=2,pp=4", "tp=4,pp=2", "tp=8,dp_attention=8,ep=8"]
COMPARE = [word for strategy in STRATEGIES for word in ("--strategy", strategy)]
LOAD = ["--concurrency", "1,2,4,8,16,32,64,128", "--input-tokens", "1024", "--output-tokens", "1024"]


def call(arguments: list[str]) -> str:
    """Python code that runs one command line."""
    return f"import sys; sys.argv = {['perfmodel', *arguments]!r}; from perfmodel.cli import main; main()"


CASES = {
    "import numpy": "import numpy",
    "import perfmodel": "import perfmodel",
    "memory": call(["memory", *NODE, "--tp", "1", "--pp", "8"]),
    "memory --json": call(["memory", *NODE, "--tp", "1", "--pp", "8", "--json"]),
    "compare 7 x 8": call(["compare", *NODE, *COMPARE, *LOAD]),
}


def seconds(code: str) -> float:
    """Wall time of one process."""
    begin = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    took = time.perf_counter() - begin
    if run.returncode not in (0, 1):  # 1 is the answer "no"
        raise SystemExit(f"exit {run.returncode}: {code}\n{run.stderr}")
    return took


def import_times(code: str) -> Counter[str]:
    """Milliseconds spent in the modules of each top-level package, its own code only."""
    run = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True)
    spent: Counter[str] = Counter()
    for own_us, module in re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s*(\S+)$", run.stderr, re.M):
        spent[module.split(".")[0]] += int(own_us)
    return spent


def main() -> None:
    """Measure every case, the cases taking turns so that a busy moment hits all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="processes per case (default: %(default)s)")
    runs = parser.parse_args().runs
    for code in CASES.values():
        seconds(code)  # warms the file cache and writes .pyc
    took: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(runs):
        for name, code in CASES.items():
            took[name].append(seconds(code))
    bare = statistics.median(took["import numpy"])
    print(f"{'median of ' + str(runs):<20}{'s':>8}{'low':>8}{'high':>8}{'x numpy':>9}")
    for name, times in took.items():
        median = statistics.median(times)
        print(f"{name:<20}{median:>8.3f}{min(times):>8.3f}{max(times):>8.3f}{median / bare:>9.1f}")
    for name in ("memory", "compare 7 x 8"):
        print(f"\n{name}: imports, ms by package")
        for package, own_us in import_times(CASES[name]).most_common(10):
            print(f"{package:<20}{own_us / 1e3:>8.1f}")


if __name__ == "__main__":
    main()
