"""What NCCL's protocols cost for one operation and group, from a table of figures; where one gives way to the next."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from perfmodel.catalog import AllReduce, Figure
from perfmodel.placement.tuning import NVLS_BLACKWELL, NVLS_HOPPER

RING_OPS = ("all_reduce", "all_gather", "reduce_scatter")
# Steps of LL and LL128, and bandwidth of LL, against Hopper. Kind: derived from NCCL over 6 B300,
# hardware/observations/nccl-kernels.csv: 25 us up to 128 KiB, 205 to 250 GB/s from 2 to 8 MiB.
BLACKWELL_HOP, BLACKWELL_LL = 1.8, 1.25
NVLS_HEADS, NVLS_CHUNK = 8, 65536.0     # GPUs that head a channel; chunk of large messages [B]: src/enqueue.cc

_MISS = 0.15            # 90th percentile of what three straight lines miss a measured curve by


@dataclass(frozen=True)
class Protocol:
    """One NCCL protocol for one operation and group: start-up, one step, bus bandwidth, copy of a rank's own share.

    ``until_bytes`` is the largest message that NCCL runs it for; infinite where the fastest protocol is taken.
    """

    name: str
    base_s: float
    hop_s: float
    busbw_Bps: float
    until_bytes: float = math.inf
    copy_Bps: float = math.inf
    inner_steps: float = 0.0        # of a tree, inside a machine and between machines
    outer_steps: float = 0.0
    net_hop_s: float = 0.0
    ramp_bytes: float = 0.0         # NVLS up to here moves small chunks, at
    ramp_Bps: float = math.inf

    @property
    def tree(self) -> bool:
        """Whether it runs up and down a tree; else around a ring, or through the switch."""
        return self.name.startswith("Tree")

    def line(self, op: str, ranks: int) -> tuple[float, float]:
        """Seconds of an empty message and of each byte: where two of these lines meet, the faster protocol changes."""
        if self.tree:
            return self.base_s + self.inner_steps * self.hop_s + self.outer_steps * self.net_hop_s, 2 / self.busbw_Bps
        steps = {"all_reduce": 2 * (ranks - 1), "send_recv": 1}.get(op, ranks - 1)
        share = 1.0 if op == "send_recv" else steps / ranks
        width = min(self.busbw_Bps, self.ramp_Bps)
        return self.base_s + steps * self.hop_s, share / width + 1 / (ranks * self.copy_Bps)


def protocol_word(name: str) -> str:
    """What NCCL_PROTO calls it: ll, ll128 or simple.

    >>> [protocol_word(name) for name in ("LL", "Tree LL128", "NVLS")]
    ['ll', 'll128', 'simple']
    """
    return "simple" if name == "NVLS" else name.split()[-1].lower()


def algorithm_word(name: str) -> str:
    """What NCCL_ALGO calls it: ring, tree or nvls.

    >>> [algorithm_word(name) for name in ("LL", "Tree LL128", "NVLS")]
    ['ring', 'tree', 'nvls']
    """
    return "nvls" if name == "NVLS" else "tree" if name.startswith("Tree") else "ring"


def no_later_than_they_meet(op: str, ranks: int, order: list[Protocol]) -> tuple[Protocol, ...]:
    """NCCL's switches, moved down to where the curves meet if a protocol were kept beyond that.

    NCCL believes that its curves meet at the switch; where it switches too early the time jumps up, as it does.
    """
    out: list[Protocol] = []
    for p, q in itertools.pairwise(order):
        (start, per_byte), (later, less) = p.line(op, ranks), q.line(op, ranks)
        until = p.until_bytes
        if later + less * until < start + per_byte * until:
            until = max(0.0, (later - start) / (per_byte - less)) if per_byte > less else 0.0
        out.append(replace(p, until_bytes=until))
    return (*out, *order[-1:])


def settled(op: str, ranks: int, found: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
    """Measured limits, moved to where the lines meet if the time would fall by less than the lines miss."""
    out: list[Protocol] = []
    for p, q in itertools.pairwise(found):
        (start, per_byte), (later, less) = p.line(op, ranks), q.line(op, ranks)
        fall = (
            1 - (later + less * p.until_bytes) / (start + per_byte * p.until_bytes)
            if math.isfinite(p.until_bytes)
            else 0
        )
        out.append(no_later_than_they_meet(op, ranks, [p, q])[0] if 0 < fall < _MISS else p)
    return (*out, *found[-1:])


def endless(p: Protocol) -> Protocol:
    return replace(p, until_bytes=math.inf)


def read_protocols(table: AllReduce, op: str, ranks: int, count: int, scale: float = 1.0) -> tuple[Protocol, ...]:
    """Protocols of a table of figures for a group; those without a bandwidth for it are not used.

    ``scale`` is what the group's links carry against those of the table; a copy in a GPU's own memory passes none.
    """
    rows = (
        ("LL", table.base_s, table.hop_s, "ll_busbw", table.ll_until),
        ("LL128", table.ll128_base_s, table.ll128_hop_s, "ll128_busbw", table.ll128_until),
        ("Simple", table.simple_base_s, table.simple_hop_s, "simple_busbw", None),
        ("NVLS", table.nvls_base_s, None, "nvls_busbw", None),
    )
    copy = _value(table.copy_rate) or math.inf if op in ("all_gather", "reduce_scatter") else math.inf
    found = []
    for name, base, hop, bandwidth, until in rows:
        start, step, width = _value(base), _value(hop), _width(table, bandwidth, ranks, count)
        if name == "NVLS" and (op != "all_reduce" or start is None):
            continue
        if start is None or width is None or step is None and name != "NVLS":
            continue
        found.append(Protocol(name, start, step or 0.0, scale * width, _value(until) or math.inf,
                              copy if name == "Simple" else math.inf))
    return tuple(found)


def bound_by_channels(table: dict[str, Protocol], widest: dict[str, Protocol], op: str, ranks: int,
                      rate_Bps: float, link_Bps: float, peers: float) -> dict[str, Protocol]:
    """The same protocols over PCIe links of another width: as many channels carry as much, until the link binds.

    ``table`` holds the figures of this group and ``widest`` those of the best group of the class, whose links carry
    ``link_Bps``; those of this group carry ``rate_Bps``. An all-to-all, measured between two GPUs, has two channels for
    each peer (NCCL 2.30.7 src/graph/paths.cc, ncclTopoGetNchannels). A GPU with several peers reaches the share
    ``peers`` of its port.
    """
    best = {name: p.busbw_Bps / link_Bps for name, p in widest.items()}
    if op in RING_OPS or op == "send_recv":
        return {name: replace(p, busbw_Bps=min(p.busbw_Bps, best[name] * rate_Bps)) for name, p in table.items()}
    share = best["Simple"] if ranks == 2 else peers
    return {name: replace(p, busbw_Bps=min(p.busbw_Bps * (ranks - 1), share * rate_Bps)) for name, p in table.items()}


def on_nvlink5(table: dict[str, Protocol], scale: float, channels: int, ranks: int) -> dict[str, Protocol]:
    """Hopper's figures, scaled by ``scale``, as they are on Blackwell: steps are slower, and LL gains little.

    NVLS moves chunks of 32 KiB up to 64 KiB x 8 for each channel and head (NCCL 2.30.7 src/enqueue.cc), so that as many
    bytes are in flight as on Hopper, and no more come through. Beyond, it reaches 0.74 of the links against 0.85 on
    Hopper (src/graph/tuning.cc, nvlsEfficiency).
    """
    out = {}
    for name, p in table.items():
        hopper = p.busbw_Bps / scale
        if name == "NVLS":
            wide = p.busbw_Bps * NVLS_BLACKWELL / NVLS_HOPPER
            out[name] = replace(p, busbw_Bps=wide, ramp_Bps=min(hopper, wide),
                                ramp_bytes=8.0 * channels * min(ranks, NVLS_HEADS) * NVLS_CHUNK)
        else:
            width = min(p.busbw_Bps, BLACKWELL_LL * hopper) if name == "LL" else p.busbw_Bps
            out[name] = replace(p, hop_s=(1.0 if name == "Simple" else BLACKWELL_HOP) * p.hop_s, busbw_Bps=width)
    return out


def _width(table: AllReduce, name: str, ranks: int, count: int) -> float | None:
    """Bus bandwidth of a group: between the measured groups around it, by the logarithm of their sizes. [B/s]

    Below the smallest it is that one's. None: the protocol is not used by the next larger group measured.
    """
    known = {size: _value(getattr(group, name)) for size, group in table.by_ranks.items()}
    if known and count <= max(known):       # figures borrowed from a larger node of the same kind
        count = 2 * max(known)
    known[count] = _value(getattr(table, name))
    above = min((size for size in known if size >= ranks), default=count)
    below = max((size for size in known if size < ranks), default=above)
    high, low = known[above], known[below]
    if high is None or low is None or above <= below:
        return high
    part = math.log(ranks / below) / math.log(above / below)
    return math.exp(part * math.log(high) + (1 - part) * math.log(low))


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value
