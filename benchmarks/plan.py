"""How fast a full search is: Kimi K2.6 on eight RTX PRO 6000, cold in a new process and warm in the same one.

    python benchmarks/plan.py [--runs 3]

A point is one deployment at one concurrency. Prints wall and processor time, points a second of processor time, peak
memory, and the cold processor time as a multiple of a bare ``import numpy``: the ratio travels between machines, the
seconds do not. Targets: 10,000 points cold
below 2 s and 150 MiB, 100,000 points a second warm on one core.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

CODE = """
import json, resource, time
import perfmodel as pm
ask = lambda: pm.plan("kimi-k2.6", node="8x-rtx-pro-6000-server", engine={engine!r}, context=32768)
found = ask()
begin = time.process_time()
for _ in range({warm}):
    ask()
warm = (time.process_time() - begin) / max({warm}, 1)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(dict(points=found.priced, deployments=found.deployments, refused=sum(found.refused.values()),
                      warm=warm, peak=peak)))
"""


def run(code: str) -> tuple[float, float, str]:
    """Wall time, processor time and output of one process."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> None:
    """Measure both engines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="cold processes per engine (default: %(default)s)")
    runs = parser.parse_args().runs
    bare = statistics.median(run("import numpy")[1] for _ in range(runs + 1))
    print(f"{'engine':8}{'deployments':>12}{'refused':>9}{'points':>9}{'cold, s':>9}{'of CPU':>8}{'x numpy':>9}"
          f"{'MiB':>5}{'warm, points/s':>16}")
    for engine in ("vllm", "sglang"):
        cold = [run(CODE.format(engine=engine, warm=0)) for _ in range(runs)]
        wall, cpu = (statistics.median(one[i] for one in cold) for i in (0, 1))
        first = json.loads(cold[0][2])
        warm = json.loads(run(CODE.format(engine=engine, warm=runs))[2])
        print(f"{engine:8}{first['deployments']:12,}{first['refused']:9,}{first['points']:9,}{wall:9.2f}{cpu:8.2f}"
              f"{cpu / bare:9.1f}{first['peak']:5.0f}{warm['points'] / warm['warm']:16,.0f}")


if __name__ == "__main__":
    main()
