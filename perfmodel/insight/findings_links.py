"""What may be wrong with the links: the engine's own all-reduce, NCCL's variables and protocols, P2P."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.catalog import Node
from perfmodel.engines import ENGINES
from perfmodel.engines.versions import at_least
from perfmodel.insight.case import Candidate, Case
from perfmodel.placement import links_of

PCIE_IPC_SINCE = {"sglang": "0.5.21", "vllm": "0.30"}
assert set(PCIE_IPC_SINCE) <= set(ENGINES)


def all_reduce(case: Case) -> Iterator[Candidate]:
    """The engine's own kernel switched off, or unavailable on PCIe."""
    o, facts = case.options, case.deployment.facts
    if o.attention_tp < 2:
        return
    if o.all_reduce == "nccl" and (facts.full_nvlink or o.attention_tp == 2):
        yield Candidate("custom all-reduce switched off", "small messages take NCCL, with its longer start-up",
                        f"{o.engine} {o.version} dispatch of all-reduce", {"all_reduce": None})
    since = PCIE_IPC_SINCE.get(o.engine)
    if since and not facts.full_nvlink and facts.p2p and o.attention_tp in (4, 8) and o.all_reduce != "pcie_ipc":
        older = not at_least(o.version, since)
        yield Candidate(
            "custom all-reduce unavailable on PCIe",
            "more than two GPUs without NVLink always take NCCL; the PCIe IPC kernel is switched on apart"
            + (f", from {o.engine} {since} on: both sides are asked there" if older else ""),
            f"{o.engine} dispatch of all-reduce; FlashInfer PCIe IPC", {"all_reduce": "pcie_ipc"},
            version=since if older else "",
        )


def nccl_setup(case: Case) -> Iterator[Candidate]:
    """NCCL variables that cost, P2P that is off, and the variant that the answer takes for granted."""
    o, d = case.options, case.deployment
    if o.tp == 1 and o.pp == 1:
        return
    words = (o.nccl or "").split()
    for word in words:
        if "=" in word:
            rest = " ".join(w for w in words if w != word) or None
            off = word.startswith("NCCL_P2P_DISABLE") or word in ("NCCL_P2P_LEVEL=LOC", "NCCL_P2P_LEVEL=0")
            yield Candidate("P2P between GPUs switched off" if off else f"NCCL variable {word}",
                            "messages go through host memory" if off else "it binds NCCL's own choice",
                            "NCCL 2.30.7 graph/paths.cc, graph/tuning.cc", {"nccl": rest}, flag=f"remove {word}")
    if d.node.p2p is False:
        yield Candidate("no P2P between GPUs on this node", "messages go through host memory; a patched driver or "
                        "another platform is needed, and NCCL_P2P_LEVEL=SYS so that NCCL uses it", "node file",
                        {"nccl": " ".join([*(w for w in words if "=" in w), "NCCL_P2P_LEVEL=SYS"])},
                        node=_with_p2p(d.node), flag="P2P on")
    yield from _protocols(case)
    found = d.node.collectives
    if not words and found and found.default != "stock" and "stock" in found.variants:
        yield Candidate(
            "the answer takes NCCL as tuned",
            f"this node's figures are for the variant {found.default!r}; with NCCL as installed it is slower",
            "node file, collectives", {"nccl": "stock"}, flag="NCCL without its tuning", kind="risk",
        )


def _protocols(case: Case) -> Iterator[Candidate]:
    """P2P that NCCL does not dare to use, and protocols that it keeps beyond the size where another is faster."""
    o, d = case.options, case.deployment
    words = (o.nccl or "").split()
    stated = " ".join(words)
    links, ranks = links_of(d), o.world
    if d.node.p2p is True and ranks > 1 and links.transport(ranks) == "host" and "NCCL_P2P" not in stated:
        yield Candidate(
            "NCCL does not use P2P across root ports",
            "peer access works on this node, and NCCL goes through host memory all the same: by default it crosses no "
            "farther than a PCIe switch", "NCCL 2.30.7 src/graph/paths.cc ncclTopoCheckP2p",
            {"nccl": " ".join([*words, "NCCL_P2P_LEVEL=SYS"])}, flag="set NCCL_P2P_LEVEL=SYS")
    if o.attention_tp < 2 or "NCCL_PROTO" in stated:
        return
    known = {p.name.split()[-1] for p in links.protocols("all_reduce", o.attention_tp)}
    for protocols in ("^LL", "^LL128", "^Simple", "LL", "LL128", "Simple"):
        if protocols.strip("^") in known and (len(known) > 2 or "^" not in protocols):
            yield Candidate(
                f"NCCL picks a slow protocol at these sizes ({protocols} would not)",
                f"of {', '.join(sorted(known))}, NCCL's own tuning keeps one beyond the size where another is faster",
                "NCCL 2.30.7 src/graph/tuning.cc, node file", {"nccl": " ".join([*words, f"NCCL_PROTO={protocols}"])},
                flag=f"set NCCL_PROTO={protocols}")


def _with_p2p(node: Node) -> Node:
    """The node with peer access; its own measured collectives no longer hold."""
    return node.model_copy(update={"p2p": True, "collectives": None})
