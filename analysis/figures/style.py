"""How every figure looks: fonts, colours, and a sheet of panels whose places are worked out in inches.

The places are computed from the size of the text rather than left to an automatic layout, because labels at the
ends of lines, a strip for what failed and a wrapped footnote all have to fit, and are tested not to overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

SIZE, SMALL, TITLE = 8.0, 7.0, 10.0  # points
LINE = 1.35  # of the font size, from one line of text to the next
DARK, GREY, PALE = "#222222", "#8a8a8a", "#f2f2f2"
MARKERS = ("o", "s", "^", "D", "v", "<", ">", "p", "h", "P", "X", "*")
PALETTE = (0, 1, 2, 4, 3, 9, 5)  # of seaborn's colour-blind safe one; its yellow, pink and grey vanish on white
RC: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same widths on every machine
    "font.size": SIZE,
    "text.parse_math": False,  # a dollar sign in a name is one
    "axes.labelsize": SIZE,
    "axes.titlesize": SIZE,
    "axes.titley": 1.0,  # above the panel; looking each time for what may be in its way takes long
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "xtick.bottom": True,
    "xtick.major.size": 3,
    "xtick.major.width": 0.8,
    "axes.linewidth": 0.8,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 5.0,
    "text.color": DARK,
    "axes.labelcolor": DARK,
    "xtick.color": DARK,
    "ytick.color": DARK,
    "text.hinting": "none",  # hinted text is wider than measured, by an amount that depends on the resolution
    "svg.fonttype": "none",  # text stays text: it can be searched and edited
    "svg.hashsalt": "scaling-study",  # the same figure is the same file
    "figure.dpi": 100,
    "savefig.dpi": 200,
}


@contextmanager
def applied() -> Iterator[None]:
    """The style, for as long as figures are drawn and saved; nothing of it stays behind."""
    with mpl.rc_context(), sns.axes_style("whitegrid", rc=RC), sns.plotting_context("paper", rc=RC):
        mpl.rcParams.update(RC)
        yield


def colours(count: int) -> list[str]:
    """The first `count` colours, from the start again where there are more."""
    palette = sns.color_palette("colorblind").as_hex()
    return [palette[PALETTE[i % len(PALETTE)]] for i in range(count)]


def left_of(numbers: Sequence[str]) -> float:
    """Inches that a y axis with these tick labels and its name need."""
    return 0.5 + max(inches(number, SMALL) for number in numbers)


def shades(count: int) -> list[str]:
    """For an ordered thing, such as batch sizes: dark to light, distinct in grey as well."""
    return list(sns.color_palette("viridis", n_colors=max(count + 1, 3)).as_hex()[:count])


@cache
def inches(text: str, size: float = SIZE, bold: bool = False) -> float:
    """Width of one line of text."""
    if not text.strip():
        return 0.0
    font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", size=size)
    # From the advances of its letters: from their outlines it would take 30 times as long.
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return 1.03 * float(width) / 72


def wrapped(text: str, width: float, size: float = SMALL, bold: bool = False) -> list[str]:
    """Lines of at most `width` inches."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and inches(longer, size, bold) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


@dataclass(frozen=True)
class Layout:
    """Sizes in inches. Each panel has room at its left for the y axis, at its right (`gutters`) for labels, and
    under it a strip of `strip` for what failed."""

    panel_width: float = 2.4
    panel_height: float = 2.3
    left: float = 0.68
    gutters: tuple[float, ...] = (1.2,)  # of each column; the last also of those that follow
    strip: float = 0.0
    above: float = 0.36  # room for the panel's title
    below: float = 0.48  # room for its tick labels and x label
    panel_heights: tuple[float, ...] = ()  # of each row of panels, where they differ
    last_below: float = 0.0  # more room under the last row, where only that one has the x label

    def heights(self, rows: int) -> list[float]:
        """Of the panels of each row."""
        return list(self.panel_heights) or [self.panel_height] * rows


@dataclass(frozen=True)
class Sheet:
    """A figure and its panels: `axes[row][column]`, with the strip under each, or None."""

    figure: Figure
    axes: list[list[Axes]]
    strips: list[list[Axes | None]]
    layout: Layout

    def at(self, index: int) -> tuple[Axes, Axes | None]:
        """The index-th panel and its strip, counted along the rows."""
        row, column = divmod(index, len(self.axes[0]))
        return self.axes[row][column], self.strips[row][column]


def sheet(rows: int, columns: int, layout: Layout, title: str, footnote: Sequence[str]) -> Sheet:
    """An empty sheet with its title above, and each sentence of the footnote on lines of its own below."""
    gutters = [layout.gutters[min(column, len(layout.gutters) - 1)] for column in range(columns)]
    starts = list(accumulate([layout.left + layout.panel_width + gutter for gutter in gutters], initial=0.0))
    heights = layout.heights(rows)
    around = layout.above + layout.strip + layout.below
    downs = list(accumulate([height + around for height in heights], initial=0.0))  # where each row begins
    width = max(starts[-1], 4.0)
    heading = wrapped(title, width - 0.2, TITLE, bold=True)
    notes = [line for sentence in footnote for line in wrapped(sentence, width - 0.2)]
    top = 0.12 + len(heading) * TITLE * LINE / 72
    bottom = 0.14 + len(notes) * SMALL * LINE / 72
    height = top + downs[-1] + layout.last_below + bottom
    figure = Figure(figsize=(width, height))
    axes: list[list[Axes]] = []
    strips: list[list[Axes | None]] = []
    for row in range(rows):
        axes.append([])
        strips.append([])
        for column in range(columns):
            x = starts[column] + layout.left
            y = height - top - downs[row] - layout.above - heights[row]
            axis = figure.add_axes((x / width, y / height, layout.panel_width / width, heights[row] / height))
            axes[-1].append(axis)
            under = (x / width, (y - layout.strip) / height, layout.panel_width / width, layout.strip / height)
            strips[-1].append(figure.add_axes(under, sharex=axis) if layout.strip else None)
    for index, line in enumerate(heading):
        down = 0.06 + (index + 0.8) * TITLE * LINE / 72
        figure.text(0.1 / width, 1 - down / height, line, fontsize=TITLE, weight="bold", va="baseline")
    for index, line in enumerate(notes):
        up = 0.1 + (len(notes) - 1 - index) * SMALL * LINE / 72
        figure.text(0.1 / width, up / height, line, fontsize=SMALL, color="#555555", va="baseline")
    return Sheet(figure, axes, strips, layout)


def name_y(axis: Axes, text: str, layout: Layout) -> None:
    """The y axis's name, at the same place in every panel, however wide the tick labels are."""
    axis.set_ylabel(text, va="center")
    axis.yaxis.set_label_coords((0.14 - layout.left) / layout.panel_width, 0.5)


def remove(sheet: Sheet, index: int) -> None:
    """Take away the index-th panel and its strip: one that is left over at the end of the sheet."""
    for axis in sheet.at(index):
        if axis is not None:
            axis.remove()
