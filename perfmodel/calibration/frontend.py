"""The front end of `perfmodel.serving.frontend`, fitted again on the TTFT of the runs that may be fitted on."""

from __future__ import annotations

from itertools import product

import numpy as np

from perfmodel.insight.serving import rows_of, simulated
from perfmodel.serving.frontend import Front

# Grid of the fit: way [s], a prompt [s], a token of a prompt [s/token]
WAYS, PROMPTS, TOKENS = (0.0, 0.004, 0.008, 0.016), (0.0005, 0.001, 0.002), (4e-6, 8e-6, 12e-6, 16e-6)
ENGINES = ("vllm", "tensorrt-llm")  # SGLang's fitted runs are all of models whose eager prefill waits for the host


def fit_front(every: int = 6) -> tuple[Front, float]:
    """The front end with the smallest mean error of the logarithm of TTFT, and that error.

    Errors beyond a factor of two count as that: a run that is far off says nothing about a few milliseconds. ``every``
    takes each n-th run; all of them take an hour.
    """
    rows = [row for row in rows_of() if row["use"] == "fit" and row["statistic"] and row["engine"] in ENGINES][::every]
    best = (Front(0.0, 0.0, 0.0), np.inf)
    for way, prompt, token in product(WAYS, PROMPTS, TOKENS):
        front = Front(way, prompt, token)
        errors = [abs(np.log(1e3 * simulated(row, front).ttft_s.mean() / float(row["ttft_ms"]))) for row in rows]
        error = float(np.mean(np.minimum(errors, np.log(2))))
        if error < best[1]:
            best = (front, error)
    return best
