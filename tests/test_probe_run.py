"""Planning, fitting, journal and files of the probe, and the command around made-up measuring processes."""

import csv
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import catalog
from perfmodel.catalog.schema import AllReduce
from perfmodel.catalog.yaml import parse_yaml
from perfmodel.cli import main
from perfmodel.costs.collectives import ring_all_reduce_s
from perfmodel.errors import BadInput, UnknownName
from perfmodel.probe import files, machine, run, session
from perfmodel.probe.fit import all_reduce_figures
from perfmodel.probe.journal import FILE, Record, open_journal, read_journal
from perfmodel.probe.plan import MIB, Task, plan, worlds

SAMPLES = Path(__file__).parent / "samples"


# ---------------------------------------------------------------- plan, fit, machine


def test_plan_grows_and_shrinks_with_the_machine() -> None:
    full = plan(8, 9.0, 1.4e11, host_staged=True)
    assert len({task.key for task in full}) == len(full)
    assert {task.gpus for task in full if task.table == "all_reduce"} == {2, 4, 8}
    sizes = {task.message_bytes for task in full if task.table == "all_to_all"}
    assert (min(sizes), max(sizes)) == (1024, 256 * MIB)
    assert {task.mode for task in full if task.table == "send_recv"} == {"graph", "eager", "graph_unmixed"}
    assert {task.gpus for task in full if task.table == "send"} == {2}
    assert len(plan(8, 9.0, 1.4e11, quick=True)) < len(full) / 4
    assert {task.table for task in plan(1, 9.0, 1.4e11)} == {"copy", "launch", "gemm"}
    assert "fp8" not in {task.dtype for task in plan(1, 8.0, 1.4e11)}
    small = plan(1, 7.5, 4e9)
    assert max(task.n for task in small) < max(task.n for task in full)
    assert all(task.m > 16 for task in full if task.dtype == "int8")
    assert all(task.message_bytes % (2 * task.gpus) == 0 for task in plan(6, 9.0, 1e11, only=("collectives",)))
    assert worlds(6) == [2, 4, 6]
    with pytest.raises(UnknownName, match="nearest: gemm"):
        plan(1, 9.0, 1e11, only=("gem",))


def test_fit_finds_what_the_curve_was_made_of() -> None:
    truth = {2: (4e-6, 2e9, 8e-6, 90e9, 30e-6, 300e9), 4: (8e-6, 1.5e9, 20e-6, 80e9, 90e-6, 280e9)}
    records = []
    for ranks, (a, b, c, d, e, f) in truth.items():
        for size in (2**i for i in range(10, 29)):
            start, busbw = (a, b) if size <= 2**14 else (c, d) if size <= 2**20 else (e, f)
            us = 1e6 * float(ring_all_reduce_s(size, ranks, start, 0.0, busbw))
            task = Task("all_reduce", "nccl", "bf16", "graph", "default", ranks, size)
            records.append(Record(task, us, us, us, 1, 1))
    raw = all_reduce_figures(records, "default", "graph", 4)
    assert raw is not None
    raw = raw | {"note": ""}
    found = AllReduce.model_validate(raw)
    assert float(found.ll_until or 0) == 2**14
    assert float(found.ll128_until or 0) == 2**20
    assert float(found.simple_busbw) == pytest.approx(280e9, rel=1e-3, abs=0)
    assert float(found.by_ranks[2].ll128_busbw or 0) == pytest.approx(90e9, rel=1e-3, abs=0)
    assert float(found.base_s) + 6 * float(found.hop_s) == pytest.approx(8e-6, rel=1e-3, abs=0)
    assert float(found.base_s) + 2 * float(found.hop_s) == pytest.approx(4e-6, rel=1e-3, abs=0)
    assert all_reduce_figures(records[:19], "default", "graph", 4) is None
    assert all_reduce_figures(records, "host_staged", "graph", 4) is None


@pytest.mark.parametrize("variant", ["alone", "in-a-row", "p2p-disabled", "p2p-disabled-in-a-row"])
def test_a_node_fitted_on_its_own_probe_is_within_five_percent(variant: str) -> None:
    transport, mode = run.VARIANTS[variant]
    found = catalog.load_node(str(SAMPLES / "probed-2x-h200-sxm.yaml")).collectives
    assert found is not None and found.default == "alone"
    table = found.variants[variant]
    zones = [(float(table.ll_until or 0), table.base_s, table.ll_busbw),
             (float(table.ll128_until or 0), table.ll128_base_s, table.ll128_busbw),
             (float("inf"), table.simple_base_s, table.simple_busbw)]  # fmt: skip
    errors = []
    for row in catalog.load_kernels("h200-probe-2026-11"):
        if (row["table"], row["transport"], row["mode"]) == ("all_reduce", transport, mode):
            size = int(row["message_bytes"])
            start, busbw = next((start, busbw) for until, start, busbw in zones if size <= until)
            assert start is not None and busbw is not None
            predicted = float(ring_all_reduce_s(size, 2, float(start), 0.0, float(busbw)))
            errors.append(abs(1e6 * predicted / float(row["latency_us"]) - 1))
    assert len(errors) == 19
    assert statistics.median(errors) <= 0.05
    assert max(errors) <= 0.35


def test_sysfs_and_cpuinfo_are_read(tmp_path: Path) -> None:
    real = tmp_path / "pci0000:00/0000:00:01.0/0000:01:00.0"
    real.mkdir(parents=True)
    for name, text in {"max_link_speed": "32.0 GT/s PCIe\n", "max_link_width": "16\n", "numa_node": "-1\n"}.items():
        (real / name).write_text(text)
    (tmp_path / "0000:01:00.0").symlink_to(real)
    assert machine.read_pcie("00000000:01:00.0", tmp_path) == {"GTps": 32.0, "lanes": 16, "bridges": 1}
    assert machine.read_pcie("../../etc/passwd", tmp_path) == {}
    one = "processor: {0}\nmodel name\t: CPU A\nphysical id\t: {0}\n"
    (tmp_path / "cpuinfo").write_text(one.format(0) + one.format(1))
    assert machine.read_host(tmp_path / "cpuinfo") == {"cpu": "CPU A", "sockets": 2, "processors": 2}
    assert machine.parse_smi("a, b\n") == []


# ---------------------------------------------------------------- journal and files


def test_journal_drops_a_torn_line_and_refuses_another_machine(tmp_path: Path) -> None:
    task = Task("launch", "add_1", mode="eager")
    with open_journal(tmp_path) as journal:
        journal.add_machine({"gpus": ["A"], "driver": "1"})
        journal.fail(task, "why")
        journal.add(Record(task, 1.0, 1.0, 2.0, 10, 3))
        with pytest.raises(BadInput, match="in use by another probe"), open_journal(tmp_path):
            pass
    with open(tmp_path / FILE, "ab") as file:
        file.write(b'{"task": {"tab')
    with open_journal(tmp_path) as journal:
        assert (list(journal.records), journal.failures) == ([task.key], {})
        with pytest.raises(BadInput, match='with driver "1", this machine has "2"'):
            journal.add_machine({"gpus": ["A"], "driver": "2"})
        journal.fail(task, "again")
    machine_facts, records, failures = read_journal((tmp_path / FILE).read_text())
    assert machine_facts == {"gpus": ["A"], "driver": "1"}
    assert (len(records), len(failures)) == (1, 1)


@pytest.mark.parametrize("line", ["{", "[]", '{"task": {"table": "x", "nonsense": 1}}', '{"task": 3}', '{"machine": 3}',
                                  '{"task": {"table": "x"}, "us": -1}', "9" * 5000])  # fmt: skip
def test_journal_that_cannot_be_read_is_refused(line: str) -> None:
    with pytest.raises(BadInput, match="line 1 is no measurement"):
        read_journal(line)


def test_observations_are_safe_text() -> None:
    facts = {"gpus": ['=cmd("x")\nB'], "driver": "1", "environment": {"NCCL_ALGO": "Ring"}}
    task = Task("all_reduce", "nccl", "bf16", "graph_unmixed", "host_staged", 2, 1024)
    rows = list(csv.DictReader(io.StringIO(files.observations_to_csv([Record(task, 5, 4, 6, 1, 1)], facts, "n"))))
    assert rows[0]["gpu"] == '\'=cmd("x") B'
    assert rows[0]["environment"] == "NCCL_ALGO=Ring NCCL_GRAPH_MIXING_SUPPORT=0 NCCL_P2P_DISABLE=1"
    assert (rows[0]["gpus"], rows[0]["m"], rows[0]["latency_us"]) == ("2", "", "5")


PLAIN = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=40)


@given(st.dictionaries(PLAIN, PLAIN | st.booleans() | st.none() | st.integers(-9, 10**9), min_size=1, max_size=5))
def test_yaml_comes_back_as_it_was(value: dict[str, Any]) -> None:
    assert parse_yaml(files.to_yaml({"a": value, "b": [value]})) == {"a": value, "b": [value]}


# ---------------------------------------------------------------- the command, with made-up measuring processes


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "WORKER", (sys.executable, str(SAMPLES / "fake_probe_worker.py")))
    monkeypatch.setattr(session, "need_torch", lambda: None)


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["probe", *arguments])


def test_without_torch_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: None)
    answer = ask("--out", str(tmp_path / "p"))
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "PyTorch, which is not installed" in answer.stderr
    assert "hint: pip install 'perfmodel[probe]'" in answer.stderr
    assert not (tmp_path / "p").exists()


@pytest.mark.usefixtures("faked")
def test_probe_writes_what_the_catalog_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = ask("--quick", "--host-staged", "--json", "--out", str(tmp_path))
    assert answer.exit_code == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert (report["skipped"], report["missing"], report["failed"]) == (0, 0, [])
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path))
    node = catalog.load_node(report["node"])
    assert (node.count, node.accelerator, node.p2p) == (2, "h200-sxm", True)
    assert node.sources["probe"].title.startswith("perfmodel probe of 2 x NVIDIA H200")
    assert catalog.load_accelerator("h200-sxm").name == "h200-sxm"           # the vendor's figures are not hidden
    probed = catalog.load_accelerator("h200-sxm-probed")
    assert float(probed.memory.bandwidth) == pytest.approx(2 * 3.201e9 * 6016 / 8, rel=1e-3, abs=0)
    assert len(catalog.load_kernels(f"probe-{report['node']}")) == report["measured"]
    again = json.loads(ask("--quick", "--host-staged", "--json", "--out", str(tmp_path)).stdout)
    assert (again["skipped"], again["measured"]) == (report["measured"], 0)


@pytest.mark.usefixtures("faked")
def test_a_gpu_that_nobody_described_gets_its_own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_GPU", "NVIDIA Something 9000")
    report = json.loads(ask("--quick", "--only", "copy,gemm", "--json", "--out", str(tmp_path)).stdout)
    assert report["accelerator"] == "something-9000"
    assert any("not the vendor's" in entry for entry in report["assumptions"])
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path))
    assert catalog.load_accelerator("NVIDIA Something 9000").form == "pcie"


@pytest.mark.usefixtures("faked")
@pytest.mark.parametrize(
    ("fault", "only", "word"),
    [("error", "gemm", "no such kernel"), ("hang", "launch", "no answer for 1 s"), ("crash", "collectives", "enough")],
)
def test_what_fails_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, only: str, word: str
) -> None:
    monkeypatch.setenv("FAKE", fault)
    flags = ("--quick", "--only", only, "--timeout", "1", "--json", "--out", str(tmp_path))
    report = json.loads(ask(*flags).stdout)
    assert report["failed"]
    assert word in report["failed"][0]["why"]
    assert report["measured"] > 0
    monkeypatch.setenv("FAKE", "")
    again = json.loads(ask(*flags).stdout)
    assert again["failed"] == []
    assert (again["measured"], again["skipped"]) == (len(report["failed"]), report["measured"])


@pytest.mark.usefixtures("faked")
def test_no_gpu_is_a_question_that_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE", "no gpu")
    answer = ask("--out", str(tmp_path))
    assert answer.exit_code == 2
    assert answer.stderr.lstrip().startswith("error: no GPU is visible (torch 2.11.0+cu130)")


def test_ctrl_c_keeps_what_is_done_and_leaves_nobody_behind(tmp_path: Path) -> None:
    code = f"""
import sys
from perfmodel.probe import session
session.WORKER, session.need_torch = (sys.executable, {str(SAMPLES / "fake_probe_worker.py")!r}), lambda: None
from perfmodel.cli import main
main(["probe", "--only", "launch", "--json", "--out", {str(tmp_path)!r}])"""
    probe = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "FAKE": "hang"})  # fmt: skip
    journal = tmp_path / FILE
    for _ in range(600):
        if journal.exists() and "add_1" in journal.read_text():
            break
        time.sleep(0.05)
    probe.send_signal(signal.SIGINT)
    report = json.loads(probe.communicate(timeout=30)[0])
    assert probe.returncode == 130
    assert (report["measured"], report["missing"]) == (1, 2)
    assert Path(report["files"][-1]).is_file()


def test_texts_of_others_become_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    topology, log = str(SAMPLES / "topo-8x-switches.txt"), str(SAMPLES / "nccl-tests-new.txt")
    assert ask("--topology", topology, "--accelerator", "h200", "--name", "box", "--out", str(tmp_path)).exit_code == 0
    assert ask("--nccl-tests", log, "--out", str(tmp_path)).exit_code == 0
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path))
    assert catalog.load_node("box").count == 8
    assert len(catalog.load_kernels("nccl-tests-all-reduce-2")) == 3
    for wrong in (("--topology", topology), ("--topology", topology, "--accelerator", "h2000"),
                  ("--topology", topology, "--accelerator", "h200", "--name", "../x"), ("--nccl-tests", topology),
                  ("--nccl-tests", "/dev/zero"), ("--topology", topology, "--nccl-tests", log), ("--timeout", "nan"),
                  ("--only", "gem", "--dry-run"), ("--gpus", "0", "--dry-run")):  # fmt: skip
        answer = ask(*wrong, "--out", str(tmp_path))
        assert (answer.exit_code, answer.stderr[:7]) == (2, "error: ")
