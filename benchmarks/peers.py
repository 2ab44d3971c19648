"""The same question to perfmodel and to a peer, where one is installed: seconds from the command line to the answer.

    python benchmarks/peers.py [--peer PATH] [--model NAME] [--hf-name NAME]

The peer is aiconfigurator (``pip install aiconfigurator``, in an environment of its own; ``--peer`` is its program).
It is asked for the best way to serve one model on eight H200 with vLLM; both searches differ in what they try, so that
only the times stand side by side. Without the peer perfmodel's time alone is printed.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import time

ASK = ("--input-tokens", "1024", "--output-tokens", "1024")


def seconds(command: list[str]) -> tuple[float, float, int, str]:
    """Wall and processor time of a process, its exit code, and what it printed."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.returncode, (
        done.stdout + done.stderr)


def main() -> None:
    """Ask both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default=shutil.which("aiconfigurator"), help="the program of aiconfigurator")
    parser.add_argument("--model", default="qwen3-32b", help="the model's name here (default: %(default)s)")
    parser.add_argument("--hf-name", default="Qwen/Qwen3-32B", help="and there (default: %(default)s)")
    given = parser.parse_args()
    code = "from perfmodel.cli import main; main()"
    ours = [sys.executable, "-c", f"import sys; sys.argv[0] = 'perfmodel'; {code}", "plan", "--model", given.model,
            "--node", "8x-h200-sxm", "--engine", "vllm", "--context", "8192", *ASK]
    calls = {"perfmodel plan": ours}
    if given.peer:
        calls["aiconfigurator"] = [given.peer, "cli", "default", "--model-path", given.hf_name, "--total-gpus", "8",
                                   "--system", "h200_sxm", "--backend", "vllm", "--serving-mode", "agg",
                                   "--isl", "1024", "--osl", "1024", "--ttft", "10000", "--tpot", "200", "--no-color"]
    else:
        print("aiconfigurator is not installed; perfmodel alone:")
    print(f"{'program':18}{'wall, s':>9}{'of CPU':>8}{'ratio':>7}")
    first = None
    for name, command in calls.items():
        wall, cpu, exit_code, said = min(seconds(command) for _ in range(2))
        first = first or cpu
        print(f"{name:18}{wall:9.2f}{cpu:8.2f}{cpu / first:7.1f}" + (f"  exit {exit_code}" if exit_code else ""))
        if exit_code:
            print(said[-400:])


if __name__ == "__main__":
    main()
