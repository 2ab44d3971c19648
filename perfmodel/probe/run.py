"""The probe itself: read the machine, measure what is missing, write the files."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.catalog import load_accelerator
from perfmodel.catalog.yaml import read_text
from perfmodel.errors import BadInput
from perfmodel.probe import session
from perfmodel.probe.descriptors import (
    LinkFigures,
    accelerator_from_probe,
    fastest_Bps,
    known_accelerator,
    node_from_topology,
    pair_figures,
    slug,
)
from perfmodel.probe.files import nccl_tests_to_csv, observations_to_csv, to_yaml, write_whole
from perfmodel.probe.fit import all_reduce_figures
from perfmodel.probe.journal import Journal, Record, open_journal
from perfmodel.probe.machine import read_machine
from perfmodel.probe.nccl_tests import bus_factor, parse_nccl_tests
from perfmodel.probe.plan import COLLECTIVES, Task, plan
from perfmodel.probe.topology import Topo, parse_topo

MAX_TEXT = 2**24
# Name in the node file -> transport and mode of the all-reduces that it is drawn through; the first is the default:
# between the kernels of a model a call in a graph costs about what it costs alone, not what it costs in a row of calls.
VARIANTS = {"alone": ("default", "graph_unmixed"), "in-a-row": ("default", "graph"),
            "p2p-disabled": ("host_staged", "graph_unmixed"), "p2p-disabled-in-a-row": ("host_staged", "graph")}
Started = Callable[[int, int], None]        # told how many tasks there are and how many are already measured


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a probe measured and wrote."""

    node: str
    accelerator: str
    measured: int
    skipped: int                            # were in the journal already
    failed: dict[str, str]                  # task -> why
    missing: int                            # planned, neither measured nor failed: it was interrupted
    files: tuple[str, ...]
    figures: dict[str, float]               # the few that people look for first
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON of the command."""
        return {"node": self.node, "accelerator": self.accelerator, "measured": self.measured, "skipped": self.skipped,
                "missing": self.missing, "failed": [{"task": task, "why": why} for task, why in self.failed.items()],
                "files": list(self.files), "figures": self.figures, "assumptions": list(self.assumptions)}


def probe(out: Path, *, quick: bool = False, host_staged: bool = False, only: tuple[str, ...] = (),
          gpus: int | None = None, timeout_s: float = 120.0, started: Started = lambda total, before: None,
          progress: session.Progress = lambda task: None) -> ProbeReport:
    """Measure this machine into a folder. What the folder's journal holds is not measured again.

    Ctrl-C ends the measuring, not the writing: the files then hold what is done.
    """
    session.need_torch()
    with open_journal(out) as journal:
        facts = session.read_facts()
        count = facts["devices"] if gpus is None else gpus
        if not 1 <= count <= facts["devices"]:
            raise BadInput(f"--gpus must lie between 1 and {facts['devices']}, not {gpus}")
        journal.add_machine(facts | read_machine())
        tasks = plan(count, facts["capability"], facts["free_bytes"], quick=quick, host_staged=host_staged, only=only)
        before = sum(task.key in journal.records for task in tasks)
        started(len(tasks), before)
        with contextlib.suppress(KeyboardInterrupt):        # `missing` says so
            session.measure(list(tasks), journal, timeout_s, progress)
        return write(out, journal, tasks, before)


def write(out: Path, journal: Journal, tasks: tuple[Task, ...], before: int) -> ProbeReport:
    """The descriptors and the table of everything that the journal holds."""
    machine, records = journal.machine or {}, list(journal.records.values())
    gpu = str(machine["gpus"][0])
    known = known_accelerator(gpu)
    accelerator, count = known or slug(gpu), len(machine["gpus"])
    source = {"title": f"perfmodel probe of {count} x {gpu}, driver {machine.get('driver') or 'unknown'}, "
                       f"torch {machine.get('torch')}, NCCL {machine.get('nccl') or 'unknown'}",
              "accessed": min((r.date for r in records), default=None)}
    assumptions = []
    part = accelerator_from_probe(machine, records, f"{known}-probed" if known else accelerator, source)
    files = [write_whole(out / "hardware/accelerators" / f"{part['name']}.yaml", to_yaml(part))]
    if known:
        assumptions.append(f"the node refers to the catalog's {known}, which has the vendor's peaks; "
                           f"{part['name']} holds what was read and measured here")
    else:
        assumptions.append(f"{accelerator} is not in the catalog: its peaks are the fastest GEMMs, not the vendor's")
    node = f"{count}x-{accelerator}"
    try:
        raw = _node(machine, records, accelerator, node, source)
        files.append(write_whole(out / "hardware/nodes" / f"{node}.yaml", to_yaml(raw)))
    except BadInput as error:
        assumptions.append(f"no node file: {error.message}")
    table = observations_to_csv(records, machine, node)
    files.append(write_whole(out / "hardware/observations" / f"probe-{node}.csv", table))
    assumptions += [f"GPU {i} was in use by something else" for i in machine.get("occupied", [])]
    wanted = {task.key for task in tasks}
    failed = {key: why for key, why in journal.failures.items() if key in wanted}
    done = sum(key in journal.records for key in wanted)
    return ProbeReport(node, accelerator, done - before, before, failed, len(wanted) - done - len(failed),
                       tuple(str(file) for file in files), figures(records), tuple(assumptions))


def node_file(topology: str, accelerator: str, out: Path, name: str = "") -> Path:
    """A node file from a file with the output of `nvidia-smi topo -m`."""
    load_accelerator(accelerator)           # refused with the nearest names where it is unknown
    raw = node_from_topology(parse_topo(read_text(topology, MAX_TEXT)), accelerator, name=_file_name(name))
    return write_whole(out / "hardware/nodes" / f"{raw['name']}.yaml", to_yaml(raw))


def nccl_tests_file(output: str, out: Path, name: str = "", ranks: int | None = None) -> Path:
    """An observation file from a file with the output of nccl-tests."""
    table = parse_nccl_tests(read_text(output, MAX_TEXT))
    text = nccl_tests_to_csv(table, ranks)
    stem = _file_name(name) or f"nccl-tests-{table.op}-{ranks or table.ranks}".replace("_", "-")
    return write_whole(out / "hardware/observations" / f"{stem}.csv", text)


def _file_name(name: str) -> str:
    if name and not re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,99}", name):
        raise BadInput(f"{name[:80]!r} is no name for a file; letters, digits, dots and dashes are")
    return name


def _node(machine: dict[str, Any], records: list[Record], accelerator: str, name: str,
          source: dict[str, Any]) -> dict[str, Any]:
    """The node from the driver's own matrix; without one, from what the GPUs can read of each other."""
    count = len(machine["gpus"])
    topo = parse_topo(machine["topology"]) if machine.get("topology") else _unknown_topology(count)
    if len(topo.gpus) != count:
        raise BadInput(f"nvidia-smi's matrix has {len(topo.gpus)} GPUs, torch sees {count} (CUDA_VISIBLE_DEVICES)")
    index = {gpu: i for i, gpu in enumerate(topo.gpus)}
    ways = {(index[a], index[b]): (a, b) for a in topo.gpus for b in topo.gpus if a != b}
    by_nvlink = {way for way, (a, b) in ways.items() if topo.nvlinks(a, b)}
    by_socket = {way for way, (a, b) in ways.items() if topo.links[a, b] == "SYS"}
    access = machine["peer_access"]
    p2p = all(all(row) for row in access)
    within = not p2p and by_socket and all(access[a][b] == ((a, b) not in by_socket) for a, b in ways)
    switched = len(by_nvlink) > 2 and len(by_nvlink) == len(ways)
    rate = fastest_Bps(records, "host_to_device", 1.0)
    host_link = LinkFigures(rate, None, "pinned host memory to GPU, one way") if rate else None
    variants = {variant: found for variant, (transport, mode) in VARIANTS.items()
                if (found := all_reduce_figures(records, transport, mode, count))}
    return node_from_topology(
        topo, accelerator, name=name, p2p="within_socket" if within else p2p, host=machine.get("host"), source=source,
        nvlink=pair_figures(records, by_nvlink, 2 if switched else 1),
        pcie=pair_figures(records, set(ways) - by_nvlink - by_socket, 2) if p2p else host_link,
        socket=pair_figures(records, by_socket, 3) if p2p else None,
        collectives={"default": next(iter(variants)), "variants": variants} if variants else None)


def _unknown_topology(count: int) -> Topo:
    """A matrix that says only that there are so many GPUs on one socket."""
    names = [f"GPU{i}" for i in range(count)]
    rows = [" ".join([a, *("X" if a == b else "PHB" for b in names)]) for a in names]
    return parse_topo("\n".join([" ".join(names), *rows]))


def figures(records: list[Record]) -> dict[str, float]:
    """The headline figures of a journal, in SI; only what was measured."""
    found: dict[str, float | None] = {
        "copy_Bps": fastest_Bps(records, "device_to_device", 2.0),
        "host_to_device_Bps": fastest_Bps(records, "host_to_device", 1.0),
        "device_to_host_Bps": fastest_Bps(records, "device_to_host", 1.0),
    }
    for r in records:
        task, seconds = r.task, r.us / 1e6
        if task.table == "gemm":
            _most(found, f"gemm_{task.dtype}_FLOPps", 2.0 * task.m * task.n * task.k / seconds)
        elif task.table == "launch":
            found[f"launch_{task.kernel}_{task.mode}_s"] = seconds
        elif task.table == "p2p" and task.kernel == "one_way":
            _most(found, "p2p_one_way_Bps", task.message_bytes / seconds)
        elif task.table == "p2p" and task.kernel == "both_ways":
            _most(found, "p2p_both_ways_Bps", 2 * task.message_bytes / seconds)
        elif task.table in COLLECTIVES:
            name = f"{task.table}_{task.gpus}_{task.transport}_{task.mode}"
            _most(found, f"{name}_busbw_Bps", task.message_bytes * bus_factor(task.table, task.gpus) / seconds)
            found[f"{name}_least_s"] = min(seconds, found.get(f"{name}_least_s") or seconds)
    return {name: float(f"{value:.5g}") for name, value in sorted(found.items()) if value is not None}


def _most(found: dict[str, float | None], name: str, value: float) -> None:
    found[name] = max(value, found.get(name) or 0.0)
