"""How long a million requests take in the simulator on one core: a burst, and a rate with chunked prompts."""

import time

import numpy as np

import perfmodel as pm

COUNT = 1_000_000


def main() -> None:
    """Seconds of each run."""
    d = pm.deploy("kimi-k2.6", node="8x-rtx-pro-6000-server", engine="vllm", tp=8, kv_dtype="fp8")
    rng = np.random.default_rng(0)
    load = {"inputs": rng.integers(500, 12000, COUNT), "outputs": rng.integers(500, 1500, COUNT)}
    for name, arrivals in (("burst", None), ("0.2 requests/s", np.cumsum(rng.exponential(5.0, COUNT)))):
        started = time.perf_counter()
        run = pm.simulate(d, **load, arrivals=arrivals)
        print(f"{name}: {time.perf_counter() - started:.1f} s, {run.preemptions:,} preemptions")


if __name__ == "__main__":
    main()
