"""Everything that could run for one collective, by name: NCCL's protocols, kernels that skip NCCL, other libraries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.catalog import load_fabric
from perfmodel.costs.network import expert_exchange_s, hierarchical_all_reduce_s
from perfmodel.errors import BadInput, UnknownName
from perfmodel.placement import Links
from perfmodel.placement.peers import switch_adds
from perfmodel.step.communication import kernel_s, nccl_choice, nccl_s

# DeepEP's low-latency kernels: start-up, and what they reach of NVLink and of a NIC. Kind: derived from the dispatch
# rows of DeepEP docs/legacy.md (H800, 200 GB/s of NVLink, 400 Gb/s a NIC; EP 8 to 256); its combine rows are checked.
DEEPEP_START_S, DEEPEP_NVLINK, DEEPEP_NIC = 34e-6, 0.95, 0.9
_FAMILIES = {"ring": ("NCCL LL", "NCCL LL128", "NCCL Simple"),
             "tree": ("NCCL Tree LL", "NCCL Tree LL128", "NCCL Tree Simple"),
             "custom": ("custom one shot", "custom two shot")}  # fmt: skip


def algorithms(op: str, sizes: Any, ranks: int, links: Links, factors: dict[str, Any], engine: str) -> dict[str, Any]:
    """Seconds of all that this node allows, by name; each has the shape that ``sizes`` and factors give."""
    if ranks < 2:
        return {}
    found = {f"NCCL {p.name}": nccl_s(op, sizes, ranks, p, factors) for p in links.everything(op, ranks)}
    gpus = links.gpus(ranks)
    machines = links.graph.machines(gpus)
    if op == "all_reduce" and machines == 1:
        found |= {name.replace("_", " "): kernel_s(name, sizes, ranks, links, factors, engine, sums=False)
                  for name in kernels(ranks, links)}
    if machines == 1 and links.transport(ranks) != "host":
        environment = links.setup.environment | {"NCCL_P2P_DISABLE": "1"}
        off = replace(links, setup=replace(links.setup, environment=environment), figures=None, _cache={})
        found["host staged"] = nccl_choice(op, sizes, ranks, off, factors)[2]
    if op == "all_reduce" and machines > 1 and ranks % machines == 0:
        found["hierarchical"] = hierarchical_s(sizes, ranks, links, factors)
    if op == "all_to_all" and links.graph.all_nvlink(gpus) and links.capability >= 9:
        found["DeepEP"] = deepep_s(sizes, ranks, links, factors)
    return found


def kernels(ranks: int, links: Links) -> tuple[str, ...]:
    """All-reduce kernels that skip NCCL and that these GPUs could run, whatever an engine's rule says."""
    gpus = links.gpus(ranks)
    if not all(links.graph.peer_access(a, b) for i, a in enumerate(gpus) for b in gpus[i + 1:]):
        return ()
    if not links.graph.all_nvlink(gpus):
        return ("custom_one_shot", "pcie_ipc")
    multimem = ("multimem",) if switch_adds(links.graph, gpus, links.capability) else ()
    return ("custom_one_shot", "custom_two_shot", "symm_mem", *multimem)


def hierarchical_s(sizes: Any, ranks: int, links: Links, factors: dict[str, Any]) -> Any:
    """All-reduce of equal machines, one level after the other, each with NCCL's Simple."""
    slow, wide = factors["collective_latency_factor"], factors["collective_bandwidth_factor"]
    gpus, net = links.gpus(ranks), load_fabric("network").figures
    machines = links.graph.machines(gpus)
    local = ranks // machines
    inner = {p.name: p for p in links.everything("all_reduce", local)}.get("Simple") if local > 1 else None
    start = 3 * float(net.simple_base_s) + (2 * (local - 1) * inner.hop_s if inner else 0.0)
    far = max(links.graph.path(gpus[0], gpu).latency_s for gpu in gpus)
    share = float(net.simple_busbw) / float(load_fabric("network").bandwidth)
    return hierarchical_all_reduce_s(sizes, local, machines, start * slow, (inner.busbw_Bps if inner else 1.0) * wide,
                                     share * links.network_Bps(gpus) * wide, (float(net.simple_hop_s) + far) * slow)


def deepep_s(sizes: Any, ranks: int, links: Links, factors: dict[str, Any]) -> Any:
    """Dispatch or combine of experts with even routing; ``sizes``: bytes that a rank sends, its own included."""
    slow, wide = factors["collective_latency_factor"], factors["collective_bandwidth_factor"]
    gpus = links.gpus(ranks)
    machines = links.graph.machines(gpus)
    local = max(1, ranks // machines)
    port = links.graph.exchange_Bps([gpu for gpu in gpus if links.graph.machine_of[gpu] == 0]) if local > 1 else 1e300
    nic = links.network_Bps(gpus) / local
    return expert_exchange_s(sizes, 1.0, 1.0, 1 - local / ranks, DEEPEP_START_S * slow, DEEPEP_NVLINK * port * wide,
                             DEEPEP_NIC * nic * wide)


WORDS = ("nccl", "ring", "ring-ll", "ring-ll128", "ring-simple", "tree", "tree-ll", "tree-ll128", "tree-simple", "nvls",
         "custom", "one-shot", "two-shot", "symm-mem", "multimem", "pcie-ipc", "host-staged", "hierarchical", "deepep")


def named(algorithm: str, known: dict[str, Any]) -> tuple[Any, Any]:
    """Names and seconds of an algorithm that the caller asks for: one of them, or the fastest of a family.

    >>> names, seconds = named("ring", {"NCCL LL": 2.0, "NCCL Simple": 1.0, "NCCL NVLS": 0.5})
    >>> str(names), float(seconds)
    ('NCCL Simple', 1.0)
    """
    word = _folded(algorithm)
    members = [name for name in _FAMILIES.get(word, ()) if name in known] or [
        name for name in known if word in {_folded(name), f"nccl{_folded(name)}", f"custom{_folded(name)}"}]
    if not members and word not in {_folded(one) for one in WORDS}:
        raise UnknownName("algorithm", algorithm, WORDS)
    if not members:
        raise BadInput(f"{algorithm} is not to be had for this operation on these GPUs; there are "
                       f"{', '.join(('nccl', *choices(known)))}")
    times = np.stack(np.broadcast_arrays(*(known[name] for name in members)))
    index = np.argmin(times, axis=0)
    return np.array(members, dtype=object)[np.ravel(index)].reshape(np.shape(index)), np.asarray(
        np.take_along_axis(times, index[None], axis=0)[0], float)


def choices(known: dict[str, Any]) -> tuple[str, ...]:
    """How the command line writes them.

    >>> choices({"NCCL LL": 1.0, "NCCL Tree LL": 1.0, "custom one shot": 1.0})
    ('ring-ll', 'tree-ll', 'one-shot')
    """
    words = []
    for name in known:
        ring = name.startswith("NCCL ") and "Tree" not in name and "NVLS" not in name
        word = name.removeprefix("NCCL ").removeprefix("custom ").lower().replace(" ", "-")
        words.append(f"ring-{word}" if ring else word)
    return tuple(words)


def _folded(name: str) -> str:
    text = "".join(ch for ch in name.lower() if ch.isalnum())
    return text.removeprefix("nccl").removeprefix("custom").removeprefix("ring") or text
