"""`nvidia-smi topo -m` text -> a checked matrix of GPUs and NICs. Reads text only; runs nothing."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from perfmodel.errors import BadInput

MAX_CHARS = 2**20
MAX_DEVICES = 256
MAX_NVLINKS = 72        # between one pair; more is no machine that exists

# From nearest to farthest, as nvidia-smi's own legend orders them; SOC is what old drivers print for SYS.
PCIE_LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU(\d{1,3})")
_LINK = re.compile(r"X|SYS|SOC|NODE|PHB|PXB|PIX|NV\d{1,3}")
_CPUS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True, slots=True)
class Topo:
    """The matrix as printed: ``links[a, b]`` is PIX, PXB, PHB, NODE, SYS or NV<number>."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: dict[tuple[str, str], str]
    cpus: dict[str, str]            # GPU -> its CPU affinity, empty where not printed
    numa: dict[str, str]            # GPU -> its NUMA affinity, empty where not printed
    nic_names: dict[str, str]       # NIC0 -> mlx5_0

    def nvlinks(self, a: str, b: str) -> int:
        """Bonded NVLinks between two devices; 0 where they talk over PCIe."""
        link = self.links[a, b]
        return int(link[2:]) if link.startswith("NV") else 0


def parse_topo(text: str) -> Topo:
    """Read the output of ``nvidia-smi topo -m``, with tabs or with spaces, with or without colours and NICs.

    >>> topo = parse_topo("  GPU0 GPU1 CPU Affinity NUMA Affinity\\nGPU0 X NV18 0-31 0\\nGPU1 NV18 X 0-31 0")
    >>> topo.gpus, topo.nvlinks("GPU0", "GPU1"), topo.numa["GPU1"]
    (('GPU0', 'GPU1'), 18, '0')
    """
    if len(text) > MAX_CHARS:
        raise BadInput(f"topology text is longer than {MAX_CHARS} characters")
    lines = [line for line in _ESCAPE.sub("", text).splitlines() if line.strip()]
    start = next((i for i, line in enumerate(lines) if line.split()[0] == "GPU0" and _is_header(line)), None)
    if start is None:
        raise BadInput("no topology matrix found: no header line that begins with GPU0",
                       hints=["give the whole output of `nvidia-smi topo -m`"])
    devices = _devices(lines[start])
    rows: dict[str, list[str]] = {}
    for line in lines[start + 1:]:
        label, *cells = line.split()
        if label in rows:
            raise BadInput(f"row {label} appears twice in the topology matrix")
        if label in devices:
            rows[label] = cells
        elif not rows or label == "Legend:":
            break
    missing = [device for device in devices if device not in rows]
    if missing:
        raise BadInput(f"the topology matrix has no row for {', '.join(missing[:4])}")
    links = _links(devices, rows)
    gpus = tuple(device for device in devices if _GPU.fullmatch(device))
    rest = {gpu: rows[gpu][len(devices):] for gpu in gpus}
    cpus = {gpu: next((cell for cell in cells[:1] if _CPUS.fullmatch(cell)), "") for gpu, cells in rest.items()}
    numa = {gpu: next((cell for cell in cells[1:2] if _CPUS.fullmatch(cell)), "") for gpu, cells in rest.items()}
    names = dict(re.findall(r"^\s*(NIC\d+): (\S+)\s*$", "\n".join(lines[start:]), re.M))
    return Topo(gpus, tuple(d for d in devices if d not in gpus), links, cpus, numa, names)


def _is_header(line: str) -> bool:
    """A header names devices; a row of GPU0 goes on with links."""
    cells = line.split()
    return len(cells) < 2 or not _LINK.fullmatch(cells[1])


def _devices(header: str) -> list[str]:
    """Column names up to the affinity columns."""
    devices: list[str] = []
    for cell in header.split():
        if cell in ("CPU", "NUMA", "GPU"):          # "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
            break
        devices.append(cell)
    if len(devices) > MAX_DEVICES:
        raise BadInput(f"a topology of {len(devices)} devices; at most {MAX_DEVICES} are read")
    doubles = [device for device, times in Counter(devices).items() if times > 1]
    if doubles:
        raise BadInput(f"column {doubles[0][:40]} appears twice in the topology matrix")
    numbers = [int(found[1]) for device in devices if (found := _GPU.fullmatch(device))]
    if numbers != list(range(len(numbers))):
        raise BadInput(f"GPUs are not numbered GPU0 to GPU{len(numbers) - 1} in the topology matrix")
    return devices


def _links(devices: list[str], rows: dict[str, list[str]]) -> dict[tuple[str, str], str]:
    """The matrix by pair, once it is square, symmetric, and says of each device that it is itself."""
    links: dict[tuple[str, str], str] = {}
    for a in devices:
        if len(rows[a]) < len(devices):
            raise BadInput(f"row {a} of the topology matrix has {len(rows[a])} cells where {len(devices)} are needed")
        for b, cell in zip(devices, rows[a], strict=False):
            if not _LINK.fullmatch(cell) or (cell == "X") != (a == b):
                raise BadInput(f"topology matrix: {a} to {b} is {cell[:40]!r}, not a link")
            if cell != "X":
                links[a, b] = "SYS" if cell == "SOC" else cell
    for (a, b), link in links.items():
        if links[b, a] != link:
            raise BadInput(f"topology matrix: {a} to {b} is {link}, but {b} to {a} is {links[b, a]}")
        if link.startswith("NV") and not 1 <= int(link[2:]) <= MAX_NVLINKS:
            raise BadInput(f"topology matrix: {a} to {b} is {link}; a pair has 1 to {MAX_NVLINKS} NVLinks")
    return links


def groups(topo: Topo, nearer_than: str) -> list[list[str]]:
    """GPUs that reach each other through PCIe links up to and including a level, in order of their first GPU.

    >>> groups(parse_topo("GPU0 GPU1 GPU2\\nGPU0 X PIX SYS\\nGPU1 PIX X SYS\\nGPU2 SYS SYS X"), "PXB")
    [['GPU0', 'GPU1'], ['GPU2']]
    """
    near = PCIE_LEVELS[: PCIE_LEVELS.index(nearer_than) + 1]
    found: list[list[str]] = []
    left = list(topo.gpus)
    while left:
        group = [left.pop(0)]
        for member in group:                        # grows while it is walked
            joined = [gpu for gpu in left if topo.links[member, gpu] in near]
            group += joined
            left = [gpu for gpu in left if gpu not in joined]
        found.append(sorted(group, key=topo.gpus.index))
    return found
