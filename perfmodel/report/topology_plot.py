"""A node as a picture: GPUs, switches, sockets, NICs and what each link carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.report.style import COLOURS, LINES, SIZE, styled, title

if TYPE_CHECKING:
    from perfmodel.catalog import Node

LOOKS = {  # fill of a vertex, white letters where it is dark
    "gpu": "#0072B2", "nvswitch": "#009E73", "switch": "#882255", "root": "#BBBBBB", "socket": "#444444",
    "nic": "#E69F00", "rail": "#DDDDDD", "network": "#DDDDDD",
}  # fmt: skip
DARK = ("gpu", "nvswitch", "switch", "socket")
HOST = ("root", "switch", "socket")
MACHINES, NAMED = 2, 20  # machines drawn of a cluster; GPUs up to which each has its name
Place = tuple[float, float]


def topology(node: Node, ax: Any = None) -> Any:
    """The graph that collectives are priced on; bandwidths are those of the node file, one direction."""
    return styled(lambda axes: _draw(node, axes), ax, SIZE)


def places(node: Node) -> dict[str, Place]:
    """Where every drawn vertex stands: GPUs in a row, the host or the NVSwitch above, NICs and network below."""
    from perfmodel.placement.topology import Graph

    graph = Graph(node)
    kinds, near = graph.kinds, {name: list(ends) for name, ends in graph.edges.items()}
    machines = {name: graph.machine_of.get(name, -1) for name in kinds}
    at: dict[str, Place] = {}
    left = 0.0
    for machine in range(min(MACHINES, max(machines.values()) + 1)):
        own = [name for name in kinds if machines[name] == machine]
        left = _machine(own, kinds, near, left, at) + 1.0
    outer = [name for name, kind in kinds.items() if kind in ("rail", "network")]
    for name in sorted(outer, key=lambda one: kinds[one] == "network"):
        below = [at[end][0] for end in near[name] if end in at]
        if below:
            at[name] = (sum(below) / len(below), -2.0 if kinds[name] == "rail" else -3.0)
    _spread([name for name in outer if kinds[name] == "rail" and name in at], at, left - 2.0)
    return at


def _machine(
    own: list[str], kinds: dict[str, Any], near: dict[str, list[str]], left: float, at: dict[str, Place]
) -> float:
    """Place one machine from ``left`` on; the result is where it ends."""
    depth = _depths([name for name in own if kinds[name] in HOST], kinds, near)
    gpus = [name for name in own if kinds[name] == "gpu"]
    for i, name in enumerate(gpus):
        at[name] = (left + i, 0.0)
    end = left + len(gpus) - 1
    for name in own:
        if kinds[name] == "nic":
            above = [at[other][0] for other in near[name] if other in gpus]
            end += 0.0 if above else 1.0  # one of the host stands beside the GPUs
            at[name] = (sum(above) / len(above), -1.0) if above else (end, 0.0)
    deepest = max(depth.values(), default=0)
    for name in sorted(depth, key=lambda one: -depth[one]):
        below = [at[end_][0] for end_ in near[name] if end_ in at and at[end_][1] < 1.0 + deepest - depth[name]]
        at[name] = (sum(below) / len(below) if below else end, 1.0 + deepest - depth[name])
    for level in set(depth.values()):
        row = sorted((name for name in depth if depth[name] == level), key=lambda one: at[one][0])
        for first, second in zip(row, row[1:], strict=False):  # none on top of another
            at[second] = (max(at[second][0], at[first][0] + 1.0), at[second][1])
    for name in own:
        if kinds[name] == "nvswitch":
            at[name] = (left + (len(gpus) - 1) / 2, 1.2)
    return end


def _depths(host: list[str], kinds: dict[str, Any], near: dict[str, list[str]]) -> dict[str, int]:
    """Links from the nearest socket of every switch and root port; sockets are 0."""
    depth = {name: 0 for name in host if kinds[name] == "socket"} or {name: 0 for name in host[:1]}
    queue = list(depth)
    for name in queue:  # grows while it is walked
        for other in near[name]:
            if other in host and other not in depth:
                depth[other] = depth[name] + 1
                queue.append(other)
    return depth


def _spread(rails: list[str], at: dict[str, Place], right: float) -> None:
    """Rails over the whole width, in their order."""
    for i, name in enumerate(rails):
        at[name] = (right * (i + 0.5) / len(rails), at[name][1])


def _draw(node: Node, ax: Any) -> None:
    from perfmodel.placement.topology import Graph

    at, kinds = places(node), node.topology.vertices
    for i, (name, kind) in enumerate(node.topology.link_kinds.items()):
        links = [link for link in node.topology.links if link.kind == name]
        if not links:
            continue
        most = max(link.count for link in links)
        words = f"{name}: {float(kind.bandwidth) / 1e9:.4g} GB/s a direction, {1e6 * float(kind.latency):.3g} us"
        words += f" ({kind.bandwidth.kind})" + (f", up to {most} side by side" if most > 1 else "")
        for k, link in enumerate(link for link in links if link.a in at and link.b in at):
            x, y = _line(at[link.a], at[link.b])
            ax.plot(x, y, color=COLOURS[(i + 3) % len(COLOURS)], linestyle=LINES[i % 3], linewidth=1.4, zorder=1,
                    label=words if k == 0 else None)  # fmt: skip
    crowded = sum(kinds[name] == "gpu" for name in at) > NAMED
    for name, place in at.items():
        _vertex(ax, name, kinds[name], *place, crowded)
    ax.set_axis_off()
    xs, ys = [x for x, _ in at.values()], [y for _, y in at.values()]
    mesh = any(at[link.a][1] == at[link.b][1] == 0 for link in node.topology.links if link.a in at and link.b in at)
    ax.set_xlim(min(xs) - 0.8, max(xs) + 0.8)
    ax.set_ylim(min(ys) - 0.5, max(*ys, 1.6 if mesh else 0.0) + 0.5)
    more = len(set(Graph(node).machine_of.values())) - MACHINES
    peers = {True: "all pairs", False: "none", "within_socket": "within a socket"}[node.p2p]
    title(ax, f"{node.name}: {node.count} x {node.accelerator}, P2P: {peers}"
          + (f"\n{MACHINES} of {MACHINES + more} equal machines are drawn" if more > 0 else ""))  # fmt: skip
    ax.legend(loc="upper left", bbox_to_anchor=(0.0, 0.0), fontsize=8)


def _line(a: Place, b: Place) -> tuple[list[float], list[float]]:
    """A straight line, or an arc over what stands between two of one row."""
    far = abs(a[0] - b[0])
    if a[1] != b[1] or a[1] != 0.0:
        return [a[0], b[0]], [a[1], b[1]]
    steps = [i / 24 for i in range(25)]
    return ([a[0] + t * (b[0] - a[0]) for t in steps], [a[1] + (0.5 + 0.22 * far) * 4 * t * (1 - t) for t in steps])


def _vertex(ax: Any, name: str, kind: str, x: float, y: float, crowded: bool) -> None:
    """A box with the name; where there are too many GPUs, a box alone."""
    if crowded and kind in ("gpu", "nic", "rail"):
        ax.plot([x], [y], marker="s", markersize=5, color=LOOKS[kind], markeredgecolor="black", markeredgewidth=0.4,
                zorder=2)  # fmt: skip
        return
    short = name.rpartition("/")[2].rpartition(".")[2][-12:]
    box = {"boxstyle": "round,pad=0.35", "facecolor": LOOKS[kind], "edgecolor": "black", "linewidth": 0.5}
    ax.annotate(short, (x, y), ha="center", va="center", fontsize=7, zorder=3, bbox=box,
                color="white" if kind in DARK else "black")  # fmt: skip
