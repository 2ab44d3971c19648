"""Measures a machine and writes accelerator, node and observation files that the catalog loads: a side loop by file.

Reading texts (`parse_topo`, `parse_nccl_tests`) and writing files needs no GPU; measuring needs torch and runs in
processes of its own (`run.probe`).
"""

from perfmodel.probe.descriptors import node_from_topology
from perfmodel.probe.files import nccl_tests_to_csv, observations_to_csv
from perfmodel.probe.nccl_tests import NcclRow, NcclTable, bus_factor, parse_nccl_tests
from perfmodel.probe.plan import Task, plan
from perfmodel.probe.topology import Topo, parse_topo

__all__ = [
    "NcclRow", "NcclTable", "Task", "Topo", "bus_factor", "nccl_tests_to_csv", "node_from_topology",
    "observations_to_csv", "parse_nccl_tests", "parse_topo", "plan",
]  # fmt: skip
