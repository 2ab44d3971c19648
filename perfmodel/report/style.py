"""The one style of all pictures, and how they become files. Readable in print and by the colour-blind: a curve has its
own colour, marker and line. matplotlib loads inside functions."""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.catalog.write import in_place_of
from perfmodel.errors import BadInput, one_line

EXTENSIONS = (".png", ".svg", ".pdf")
# Okabe and Ito, "Color Universal Design", 2008, but for its yellow, which is too light on paper;
# in this order neighbours in a stack are farthest apart for the colour-blind, see tests/test_plots.py
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#882255", "#56B4E9", "#888888")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", "--", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1)), (0, (6, 2, 2, 2)), "-")
HATCHES = ("", "//", "\\\\", "xx", "--", "||", "++", "/")  # where colour is lost; dots would make large files
STYLE: Any = {
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # a $ in a name is a dollar
    "svg.hashsalt": "perfmodel",  # names inside a file come from what it shows, not from chance
}
SIZE = (8.0, 4.6)  # inches
# The same picture, the same bytes: no dates.
UNDATED: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_path(path: str | os.PathLike[str], endings: tuple[str, ...] = EXTENSIONS, verb: str = "draw") -> Path:
    """A path that can be written to, or a refusal before anything is computed."""
    file = Path(path)
    if file.suffix.lower() not in endings:
        raise BadInput(f"cannot {verb} a {file.suffix or 'file without an ending'}; known: {', '.join(endings)}")
    if not os.path.isdir(file.parent):
        raise BadInput(f"{file}: there is no folder {file.parent}")
    if os.path.isdir(file):
        raise BadInput(f"{file} is a folder")
    return file


def write_figure(figure: Any, file: Path) -> Path:
    """The picture in place of a file, whole or not at all."""
    ending = file.suffix.lower()
    with in_place_of(file) as aside, _no_glyph_is_no_news():
        figure.savefig(aside, format=ending[1:], metadata=UNDATED[ending])
    return file


def drawn(draw: Callable[[Any], Any], ending: str = ".png", size: tuple[float, float] = SIZE) -> bytes:
    """The picture that ``draw`` makes on new axes, as the content of a file; needs no display."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE), BytesIO() as file, _no_glyph_is_no_news():
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(file, format=ending[1:], metadata=UNDATED[ending])
        return file.getvalue()


@contextmanager
def _no_glyph_is_no_news() -> Iterator[None]:
    """A name in letters that the font lacks is drawn with boxes; nothing is said about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def styled(draw: Callable[[Any], None], ax: Any, size: tuple[float, float] = SIZE) -> Any:
    """Call ``draw`` in the house style, on new axes if there are none."""
    import matplotlib.pyplot as plt
    from matplotlib import rc_context

    plt.get_backend()  # resolved outside: inside, leaving the context would switch off the notebook's display
    with rc_context(STYLE):
        if ax is None:
            _, ax = plt.subplots(figsize=size, layout="constrained")
        draw(ax)
    return ax


def title(ax: Any, text: str, width: int = 92) -> None:
    """A title that breaks between words before it leaves the picture."""
    lines = [piece for line in text.split("\n") for piece in textwrap.wrap(one_line(line), width)]
    ax.set_title("\n".join(lines))


def curve(i: int) -> dict[str, Any]:
    """Colour, marker and line of the i-th curve."""
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}


def legend_beside(ax: Any) -> None:
    """Legend to the right, in the order of the stack from the top."""
    handles, words = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], words[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))


def legend_above(ax: Any, columns: int = 2) -> None:
    """Legend above the axes, where it covers nothing; for pictures without a title."""
    ax.set_title("")
    handles, words = ax.get_legend_handles_labels()
    ax.legend(handles, words, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2)


def stack(ax: Any, at: np.ndarray, parts: Mapping[str, np.ndarray], width: float, lying: bool = False) -> np.ndarray:
    """Bars on top of each other, or one after the other from the left; the result is what they add up to.

    Standing bars below 0 hang from the axis.
    """
    end, below = np.zeros(len(at)), np.zeros(len(at))
    for i, (name, values) in enumerate(parts.items()):
        look = {"label": name, "color": COLOURS[i % len(COLOURS)], "hatch": HATCHES[i % len(HATCHES)],
                "edgecolor": "white", "linewidth": 0.5}  # fmt: skip
        if lying:
            ax.barh(at, values, width, left=end, **look)
        else:
            under = np.asarray(values) < 0
            ax.bar(at, values, width, bottom=np.where(under, below, end), **look)
            below = below + np.where(under, values, 0.0)
            values = np.where(under, 0.0, values)
        end = end + values
    return end + below


def log2_axis(ax: Any, values: Any) -> None:
    """A logarithmic axis whose ticks are the powers of two that the data span."""
    low, high = max(float(np.min(values)), 1.0), max(float(np.max(values)), 1.0)
    ax.set_xscale("log", base=2)
    powers = 2.0 ** np.arange(np.floor(np.log2(low)), np.ceil(np.log2(high)) + 1)
    ax.set_xticks(powers[:: 1 + len(powers) // 14], [f"{p:g}" for p in powers[:: 1 + len(powers) // 14]])
    ax.minorticks_off()
    ax.set_xlim(low / 1.19, high * 1.19)


def plain_ticks(*axes: Any) -> None:
    """Names of a logarithmic axis as numbers, at 1, 2 and 5 where it spans little."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in axes:
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(10, (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())


def thin_ticks(ax: Any, columns: int = 40) -> None:
    """As many names along the axis as have room in so many letters."""
    ticks, names = ax.get_xticks(), [label.get_text() for label in ax.get_xticklabels()]
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    step = -(-len(ticks) // (columns // (longest + 2) + 1)) or 1
    ax.set_xticks(ticks[::step], names[::step])
