"""What a client sees of a first token beside the engine's own time: HTTP, tokeniser, the way back."""

from __future__ import annotations

from typing import NamedTuple


class Front(NamedTuple):
    """Two processes between clients and scheduler, one behind the other; each takes prompts one after another."""

    way_s: float  # there and back again, whatever the load [s]
    request_s: float  # of a prompt [s]
    token_s: float  # of a token of a prompt: text to tokens, then to the scheduler [s/token]

    def service_s(self, prompt: float) -> float:
        """Seconds that both processes spend on a prompt. [s]"""
        return self.request_s + self.token_s * prompt

    def occupied_s(self, prompt: float) -> float:
        """Seconds until the next prompt may follow: each process has half of the work (assumed). [s]"""
        return self.service_s(prompt) / 2

    def alone_s(self, prompt: float) -> float:
        """Seconds that a request without others loses here. [s]"""
        return self.way_s + self.service_s(prompt)


NO_FRONT = Front(0.0, 0.0, 0.0)
# Kind: measured. Source: mean TTFT of the InferenceX runs under vLLM and TensorRT-LLM in
# hardware/observations/e2e-serving.csv (author ifx: ten rounds, all prompts of a round at once) less the engine's own
# time in the simulator: 20 to 30 ms at 921 prompt tokens, 70 to 140 ms at 7,373, and a mean that grows with the number
# of streams as queues make it grow. Not one process: serving-ifx-1306 took 158,000 prompt tokens a second, 6.3 us each.
# Other engines: assumed the same.
FRONT = Front(0.004, 0.001, 12e-6)
NOTE = "TTFT at the client: 5 ms, and 12 us a prompt token in two processes (measured; assumed for other hosts)"
