"""What the operating system and `nvidia-smi` say about a machine. Reads; never changes a setting."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from perfmodel.errors import BadInput
from perfmodel.probe.topology import parse_topo

SMI_FIELDS = {
    "name": "name", "driver_version": "driver", "memory.total": "memory_MiB", "clocks.max.sm": "clock_MHz",
    "power.limit": "power_W", "pcie.link.gen.max": "pcie_generation", "pcie.link.width.max": "pcie_lanes",
    "pci.bus_id": "bus",
}  # fmt: skip
# Variables that change what NCCL or torch run; nothing else of the environment is kept. NCCL_VERSION is a label that
# container images carry; NCCL does not read it.
_TELLING = re.compile(r"(NCCL|TORCH_NCCL|TORCH_SYMM_MEM|NVSHMEM)_[A-Z0-9_]+|"
                      r"CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|MODULE_LOADING|DEVICE_MAX_CONNECTIONS)")
_PRIVATE = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_COMM_ID", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE",
            "NCCL_DEBUG_FILE", "NCCL_TUNER_CONFIG_PATH")
PCIE_GT_TO_Bps = {2.5: 0.25e9, 5.0: 0.5e9, 8.0: 0.984615e9, 16.0: 1.969231e9, 32.0: 3.938462e9, 64.0: 7.5625e9}


def read_machine() -> dict[str, Any]:
    """Driver, clocks, PCIe, CPU, topology text and the environment that matters; what cannot be read is left out."""
    smi = parse_smi(_output("nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"))
    topo = _output("nvidia-smi", "topo", "-m")
    found: dict[str, Any] = {
        "smi": [{key: value for key, value in gpu.items() if key != "bus"} for gpu in smi],
        "driver": smi[0].get("driver", "") if smi else "",
        "pcie": [read_pcie(str(gpu.get("bus", ""))) for gpu in smi],
        "nvlinks": parse_nvlinks(_output("nvidia-smi", "nvlink", "-s")),
        "host": read_host(),
        "environment": {name: "set" if name in _PRIVATE else value[:100] for name, value in sorted(os.environ.items())
                        if _TELLING.fullmatch(name) and name != "NCCL_VERSION"},
    }
    with contextlib.suppress(BadInput):
        parse_topo(topo)
        found["topology"] = topo[:20_000]
    return found


def _output(*command: str) -> str:
    """What a program prints, or nothing where it is missing, fails or hangs."""
    try:
        run = subprocess.run(command, capture_output=True, timeout=30, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout[:2**20].decode("utf-8", "replace") if run.returncode == 0 else ""


def parse_smi(text: str) -> list[dict[str, Any]]:
    """Rows of ``nvidia-smi --query-gpu`` in the order of `SMI_FIELDS`; "[N/A]" is left out.

    >>> parse_smi("NVIDIA H200, 580.159.04, 143771, 1980, 700.00, 5, 16, 00000000:01:00.0")[0]["memory_MiB"]
    143771.0
    """
    gpus = []
    for line in text.splitlines()[:256]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(SMI_FIELDS):
            continue
        row: dict[str, Any] = {}
        for name, cell in zip(SMI_FIELDS.values(), cells, strict=True):
            if name in ("name", "driver", "bus"):
                row[name] = cell[:100]
            else:
                with contextlib.suppress(ValueError):
                    row[name] = float(cell)
        gpus.append(row)
    return gpus


def parse_nvlinks(text: str) -> list[list[float]]:
    """GB/s of every active NVLink of every GPU, from ``nvidia-smi nvlink -s``.

    >>> parse_nvlinks("GPU 0: NVIDIA H200 (UUID: x)\\n\\t Link 0: 26.562 GB/s\\n\\t Link 1: <inactive>\\nGPU 1: other")
    [[26.562], []]
    """
    links: list[list[float]] = []
    for line in text.splitlines()[:20_000]:
        if re.match(r"GPU \d+:", line):
            links.append([])
        elif links and (found := re.match(r"\s*Link \d+: (\d{1,4}(?:\.\d{1,4})?) GB/s\s*$", line)):
            links[-1].append(float(found[1]))
    return links


def read_pcie(bus: str, root: Path = Path("/sys/bus/pci/devices")) -> dict[str, Any]:
    """Link, NUMA node and bridges above a PCI device, as sysfs has them.

    ``bridges`` counts what lies between the host bridge and the device: one is a root port, more are switches.
    """
    found = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", bus.lower())
    if not found:
        return {}
    device = root / f"{found[1][-4:]}:{found[2]}"
    out: dict[str, Any] = {}
    speed = re.match(r"([\d.]+) GT/s", _line(device / "max_link_speed"))
    width = re.fullmatch(r"\d{1,3}", _line(device / "max_link_width"))
    if speed and width and float(speed[1]) in PCIE_GT_TO_Bps:
        out |= {"GTps": float(speed[1]), "lanes": int(width[0])}
    if re.fullmatch(r"\d{1,4}", numa := _line(device / "numa_node")):       # -1: not known
        out["numa"] = int(numa)
    with contextlib.suppress(OSError):
        function = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.\d")
        above = [part for part in device.resolve().parts if function.fullmatch(part)]
        out["bridges"] = len(above) - 1
    return out


def read_host(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """CPU name, sockets and logical processors."""
    with contextlib.suppress(OSError), open(cpuinfo, encoding="utf-8", errors="replace") as file:
        text = file.read(2**22)
        models = re.findall(r"^model name\s*:\s*(.+)$", text, re.M)
        sockets = set(re.findall(r"^physical id\s*:\s*(\d+)$", text, re.M))
        return {"cpu": models[0].strip()[:100] if models else "", "sockets": max(1, len(sockets)),
                "processors": len(re.findall(r"^processor\s*:", text, re.M))}
    return {}


def _line(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(200).strip()
    except OSError:
        return ""
