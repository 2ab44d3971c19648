"""What a client sees of a first token beside the engine's own time: HTTP, tokeniser, the way back."""

from __future__ import annotations

from typing import NamedTuple


class Front(NamedTuple):
    """The process between clients and scheduler, which takes prompts one after another."""

    way_s: float  # there and back again, whatever the load [s]
    request_s: float  # of a prompt [s]
    token_s: float  # of a token of a prompt: text to tokens, then to the scheduler [s/token]

    def occupied_s(self, prompt: float) -> float:
        """Seconds until the next prompt may follow. [s]"""
        return self.request_s + self.token_s * prompt

    def alone_s(self, prompt: float) -> float:
        """Seconds that a request without others loses here. [s]"""
        return self.way_s + self.occupied_s(prompt)


NO_FRONT = Front(0.0, 0.0, 0.0)
# Kind: measured. Source: vLLM 0.22.1's HTTP server beside one H200, hardware/observations/h200-vllm-http-2026-11.csv:
# TTFT at the client less the engine's own prefill is 8.5 ms at 128 prompt tokens, 15 ms at 1,058, 33 ms at 4,224 and
# 60 ms at 8,458; prompts of bursts follow each other every 2.5 ms at 225 tokens and every 7.2 ms at 1,059.
# The InferenceX runs (hardware/observations/e2e-serving.csv, author ifx), fitted with the calibrations, want as much
# within their noise. Other engines: assumed the same.
FRONT = Front(0.0065, 0.0013, 6e-6)
NOTE = "TTFT at the client: 8 ms, and 6 us a prompt token (measured on one vLLM host; assumed for others)"
