"""How every figure looks: sheets of panels, series, marks, footnotes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, chain
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from analysis.frames import configurations
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow, as_rows, grouped
from analysis.frames.study import workers_text
from analysis.show import notes
from scaling_study.frameworks import FRAMEWORKS, POWERSGD

# How every figure looks: fonts, colours, and a sheet of panels whose places are worked out in inches.
#
# The places are computed from the size of the text rather than left to an automatic layout, because labels at the ends
# of lines, a strip for what failed and a wrapped footnote all have to fit, and are tested not to overlap.

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


def style_colours(count: int) -> list[str]:
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
    """Lines of at most `width` inches. A longer word is cut, behind a sign in it where there is one."""
    lines: list[str] = []
    for word in re.split(" (?!%)", text):  # never between a number and its %
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and inches(longer, size, bold) <= width:
            lines[-1] = longer
            continue
        rest = word
        while len(rest) > 1 and inches(rest, size, bold) > width:
            fits = next(n for n in range(len(rest) - 1, 0, -1) if n == 1 or inches(rest[:n], size, bold) <= width)
            sign = max(rest.rfind(each, 0, fits) for each in "/_-.=")
            cut = sign + 1 if sign > 0 else fits
            lines.append(rest[:cut])
            rest = rest[cut:]
        lines.append(rest)
    return lines


def told_apart(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names without the parts that all have, and these: `(["fp32", "fp16"], ["horovod", "2 workers"])`."""
    parts = [name.split(", ") for name in names]
    shared = [part for part in parts[0] if all(part in others for others in parts)] if len(names) > 1 else []
    short = [", ".join(part for part in own if part not in shared) for own in parts]
    return (short, shared) if all(short) else (list(names), [])


def all_of(shared: Sequence[str]) -> str:
    """` All: 2 workers, fp32.`, for a caption; empty where nothing is shared."""
    return f" All: {', '.join(shared)}." if shared else ""


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
    first_left: float = 0.0  # more room left of the first column, where only that one has names of rows


@dataclass(frozen=True)
class Sheet:
    """A figure and its panels: `axes[row][column]`, with the strip under each, or None."""

    figure: Figure
    axes: list[list[Axes]]
    strips: list[list[Axes | None]]

    def at(self, index: int) -> tuple[Axes, Axes | None]:
        """The index-th panel and its strip, counted along the rows."""
        row, column = divmod(index, len(self.axes[0]))
        return self.axes[row][column], self.strips[row][column]


def sheet(rows: int, columns: int, layout: Layout, title: str, footnote: Sequence[str]) -> Sheet:
    """An empty sheet with its title above, and each sentence of the footnote on lines of its own below."""
    gutters = [layout.gutters[min(column, len(layout.gutters) - 1)] for column in range(columns)]
    across = [layout.left + layout.panel_width + gutter for gutter in gutters]
    starts = list(accumulate(across, initial=layout.first_left))
    heights = layout.panel_heights or [layout.panel_height] * rows
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
    return Sheet(figure, axes, strips)


def name_y(axis: Axes, text: str, layout: Layout) -> None:
    """The y axis's name, at the same place in every panel, however wide the tick labels are."""
    axis.set_ylabel(text, va="center")
    axis.yaxis.set_label_coords((0.14 - layout.left) / layout.panel_width, 0.5)


# How each series is drawn, the same in every panel: colour, marker, line style; hollow and grey if not comparable.

MOST_COLOURS = 12  # series that each have a look of their own; beyond, frameworks have panels and share their looks
DASHES = {"none": "-", "fp32": "-", "fp16": "--", "bf16": "-.", "int8": ":", **dict.fromkeys(POWERSGD, ":")}


@dataclass(frozen=True)
class SeriesLook:
    """One series. `sign` stands beside its name and refers to the footnote."""

    colour: str
    marker: str = "o"
    dashes: str = "-"
    sign: str = ""

    @property
    def hollow(self) -> bool:
        return bool(self.sign)


def series_looks(rows: pd.DataFrame) -> dict[str, SeriesLook]:
    """Series -> look, in the order of the series."""
    first = as_rows(rows.sort_values("series_order").drop_duplicates("series"))
    names = [str(row["series"]) for row in first]
    kinds = [name.removeprefix(f"{row['framework']}, ") for name, row in zip(names, first, strict=True)]
    if len(names) <= MOST_COLOURS:
        looks = _distinct(names)
    elif len(set(kinds)) <= MOST_COLOURS:  # `2 workers, fp16` looks the same in the panel of every framework
        shared = _distinct(list(dict.fromkeys(kinds)))
        looks = {name: shared[kind] for name, kind in zip(names, kinds, strict=True)}
    else:
        looks = _shaded(first)
    signs = {str(row["series"]): configurations.sign(row) for row in first}
    return {name: replace(look, colour=GREY, sign=signs[name]) if signs[name] else look for name, look in looks.items()}


def _distinct(names: Sequence[str]) -> dict[str, SeriesLook]:
    """The palette is shorter than MOST_COLOURS: its second round is dashed, and no marker comes twice."""
    colours, turn = style_colours(len(names)), len(PALETTE)
    return {name: SeriesLook(colours[i], MARKERS[i], "-" if i < turn else "--") for i, name in enumerate(names)}


def _shaded(first: Sequence[ConfigurationRow]) -> dict[str, SeriesLook]:
    """Too many to tell apart: shades say workers, dashes precision, markers the rest (or, with no rest, workers)."""
    workers = sorted({int(row["workers"]) for row in first})
    shade = dict(zip(workers, shades(len(workers)), strict=True))
    rests = {str(row["series"]): _rest(row) for row in first}
    kinds = sorted(set(rests.values()))
    if len(kinds) == 1:
        rests, kinds = {str(row["series"]): str(row["workers"]) for row in first}, [str(count) for count in workers]
    return {
        str(row["series"]): SeriesLook(
            DARK if alone(row["framework"]) else shade[row["workers"]],
            MARKERS[kinds.index(rests[str(row["series"])]) % len(MARKERS)],
            DASHES.get(row["allreduce"], "-"),
        )
        for row in first
    }


def _rest(row: ConfigurationRow) -> str:
    """The part of a label beside framework, workers and precision: `ZeRO-3`."""
    main = (str(row["framework"]), workers_text(int(row["workers"])), str(row["allreduce"]))
    return ", ".join(part for part in str(row["series"]).split(", ") if part not in main)


def alone(framework: str) -> bool:
    """True where the framework only ever has one worker: it is a reference to the others."""
    return framework in FRAMEWORKS and FRAMEWORKS[framework].axes.get("workers") == (1,)


# Elements that panels share: labels at the ends of lines, intervals, and the strip of what was not measured.

STEPS = [1, 2, 2.5, 5, 10]  # between ticks: no multiples of 3, 4 or 6
GAP = SMALL * 1.45 / 72  # inches between two labels
STRIP_ROW = 0.165  # inches
MOST_STRIP_ROWS = 6


@dataclass(frozen=True)
class EndLabel:
    """Text beside a panel, tied by a thin line to (x, y) in data coordinates, in the colour of its line."""

    x: float
    y: float
    text: str
    colour: str


@dataclass(frozen=True)
class Failure:
    """One row of the strip: where (`xs`, data coordinates) a line has no value, and `text`, which and why."""

    xs: tuple[float, ...]
    text: str
    colour: str
    implied: frozenset[float] = frozenset()  # those of `xs` that were not even run


def end_labels(axis: Axes, labels: Sequence[EndLabel], panel_height: float) -> None:
    """Write the labels right of the panel, as near to their heights as they can be without touching.

    The nearest places that keep an order and a distance are an isotonic regression of the heights less the
    distances (Best and Chakravarti, Math. Program. 47, 1990).
    """
    if not labels:
        return
    from scipy.optimize import isotonic_regression

    axis.autoscale_view()  # what was plotted may not have moved the limits yet
    ordered = sorted(labels, key=lambda label: label.y)
    to_axes = axis.transData - axis.transAxes  # whatever the scale of the axis
    wanted = np.array([to_axes.transform((label.x, label.y))[1] for label in ordered])
    gaps = np.arange(len(ordered)) * GAP / panel_height
    places = np.clip(isotonic_regression(wanted - gaps).x, 0.0, max(0.0, 1.0 - gaps[-1])) + gaps
    for label, place in zip(ordered, places, strict=True):
        axis.text(1.05, place, label.text, va="center", fontsize=SMALL, transform=axis.transAxes)
    # Lines of their own: an annotation's arrow looks for where it leaves its text, which takes long.
    ties = [
        np.array([to_axes.transform((label.x, label.y)), (1.04, place)])
        for label, place in zip(ordered, places, strict=True)
    ]
    axis.add_collection(
        LineCollection(
            ties,
            colors=[label.colour for label in ordered],
            linewidths=0.9,
            linestyles=":",
            clip_on=False,
            transform=axis.transAxes,
            zorder=1.5,
        ),
        autolim=False,
    )


def strip_height(panels: Sequence[Sequence[Failure]]) -> float:
    """Inches that the strip needs under panels with these failures; 0 where nothing failed."""
    rows = max((len(merged(failures)) for failures in panels), default=0)
    return rows * STRIP_ROW + 0.05 if rows else 0.0


def merged(failures: Sequence[Failure]) -> Sequence[Failure]:
    """A row for each line that failed, or one for all where that would be too many to tell apart."""
    if len(failures) <= MOST_STRIP_ROWS:
        return failures
    xs = {x for failure in failures for x in failure.xs}
    measured = {x for failure in failures for x in failure.xs if x not in failure.implied}
    return [Failure(tuple(sorted(xs)), f"{len(failures)} not measured (tables)", GREY, frozenset(xs - measured))]


def strip(axis: Axes, below: Axes | None, failures: Sequence[Failure], label: str) -> None:
    """Draw in `below` what was not measured: a cross where a value is missing, and beside it which and why.

    `label` names the x axis, which is that of the strip where there is one and of the panel where there is not.
    """
    if below is None or not failures:
        axis.set_xlabel(label)
        if below is not None:
            below.remove()
        return
    axis.tick_params(labelbottom=False, bottom=False)
    axis.spines["bottom"].set_visible(False)
    below.spines["top"].set_visible(True)
    below.set_xlabel(label)
    below.set_facecolor(PALE)
    below.grid(False)
    rows = merged(failures)
    below.set_ylim(len(rows) - 0.4, -0.6)
    below.yaxis.set_major_locator(NullLocator())
    for index, failure in enumerate(rows):
        for x in failure.xs:
            cross(below, x, index, failure.colour, x in failure.implied)
        beside(below, index, failure.text)


def cross(axis: Axes, x: float, y: float, colour: str, implied: bool) -> None:
    """Where a value is missing: a cross, hollow where it is only implied that there is none."""
    looks: dict[str, Any] = {"marker": "x", "markeredgewidth": 1.6, "markersize": 5}
    if implied:
        looks = {"marker": "X", "markeredgewidth": 0.9, "markersize": 6.5, "markerfacecolor": "white"}
    axis.plot([x], [y], linestyle="", color=colour, clip_on=False, zorder=3, **looks)


def gutter(texts: Iterable[str]) -> float:
    """Inches that labels with these texts need beside a panel."""
    return 0.35 + max((inches(text, SMALL) for text in texts), default=0.0)


def colour_key(axis: Axes, entries: Iterable[tuple[str, str]], left: float, line: float, gap: float) -> None:
    """Write (colour, name) entries below each other, right of a panel. `left`, `line`, `gap`: points from the panel to
    the squares, from one entry to the next, and from a square to its name."""
    for index, (colour, name) in enumerate(entries):
        for right, text, ink in ((left, "■", colour), (left + gap, name, DARK)):
            axis.annotate(
                text,
                xy=(1, 1),
                xycoords="axes fraction",
                xytext=(right, -(index + 0.5) * line),
                textcoords="offset points",
                va="center",
                ha="left",
                fontsize=SMALL,
                color=ink,
                annotation_clip=False,
            )


def failure(name: str, colour: str, places: Sequence[tuple[str, float, Any]]) -> Failure:
    """`fp32: oom at 256, 512; timeout at 1024` from (status, x, its name) of each missing value."""
    by_status = grouped(places, lambda place: place[0])
    text = "; ".join(f"{status} at {', '.join(str(at) for *_, at in ours)}" for status, ours in by_status.items())
    implied = frozenset(x for status, x, _ in places if status == configurations.IMPLIED)
    return Failure(tuple(x for _, x, _ in places), f"{name}: {text}", colour, implied)


def name_rows(axis: Axes, names: Sequence[str], texts: Sequence[str], right: float = 1.05) -> None:
    """A row for each name, the first on top, with its text `right` of the panel, as a share of its width."""
    for row, text in enumerate(texts):
        beside(axis, row, text, right=right)
    axis.set_ylim(len(names) - 0.4, -0.6)
    row_names(axis, range(len(names)), names)


def row_names(axis: Axes, places: Sequence[float], names: Sequence[str], **looks: Any) -> None:
    """Names left of a panel at these heights, without ticks and grid; `looks`: of their texts."""
    axis.set_yticks(places, names, **looks)
    axis.tick_params(axis="y", length=0)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.grid(False, axis="y")


def beside(axis: Axes, y: float, text: str, colour: str = DARK, right: float = 1.05) -> None:
    """Text right of a panel at the height `y` of its data."""
    axis.annotate(
        text,
        xy=(right, y),
        xycoords=("axes fraction", "data"),
        va="center",
        fontsize=SMALL,
        annotation_clip=False,
        color=colour,
    )


def value_axis(
    axis: Axes, which: Literal["x", "y"], logarithmic: bool, limits: tuple[float, float], ticks: int
) -> None:
    """An axis of numbers, `4,657`, with about so many ticks and none between them."""
    axis.set(**{f"{which}scale": "log" if logarithmic else "linear", f"{which}lim": limits})
    each = axis.xaxis if which == "x" else axis.yaxis
    ticked(each, _decades(limits, ticks) if logarithmic else MaxNLocator(ticks, steps=STEPS))


def ticked(each: Axis, locator: Locator, text: Callable[[float], str] = "{:,.10g}".format) -> None:
    """Ticks of one axis where `locator` puts them and none between, with the text of their value, `4,657`."""
    each.set_major_locator(locator)
    each.set_minor_locator(NullLocator())
    each.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def _decades(limits: tuple[float, float], ticks: int) -> LogLocator:
    """Ticks at 1, 2 and 5 times the powers of ten, or at fewer places where those would be more than `ticks`."""
    decades = math.log10(limits[1] / limits[0])
    subs = next((each for each in ((1, 2, 5), (1, 3), (1,)) if len(each) * decades <= ticks), (1,))
    return LogLocator(subs=subs, numticks=max(ticks, 3))


def ticks_through(at: float, limits: tuple[float, float], most: int = 6) -> list[float]:
    """At most so many round numbers between the limits, `at` among them where it lies there."""
    low, high = limits
    steps = (base * 10.0**power for power in range(-4, 9) for base in STEPS[:-1])
    step = next((step for step in steps if (high - low) / step <= most), high - low)
    return [at + count * step for count in range(math.ceil((low - at) / step), math.floor((high - at) / step) + 1)]


@dataclass(frozen=True)
class Panel:
    """One panel of figure_of(): what draws it, the names of its axes, the texts right of it, and what failed in it.

    `height`: in inches, where it is not that of the layout.
    """

    title: str
    draw: Callable[[Axes, Layout], None]
    x: str = ""
    y: str = ""
    labels: Sequence[str] = ()
    failures: Sequence[Failure] = ()
    height: float = 0.0


WIDEST = 7.0  # inches of a sheet: wider ones cannot be read on a page, which shows them smaller
FEW = 6  # panels, in whose last row no place stays empty


def figure_of(title: str, panels: Sequence[Panel], footnote: Sequence[str], columns: int = 0, **sizes: float) -> Figure:
    """Panels in so many columns, by default in as many as a page is wide, with room for their labels, titles and
    failures; `sizes`: of the Layout."""
    layout = Layout(**sizes)  # type: ignore[arg-type]
    texts = [(*panel.labels, *(failed.text for failed in merged(panel.failures))) for panel in panels]

    def gutters(across: int) -> tuple[float, ...]:
        return tuple(gutter(chain(*texts[column::across])) for column in range(across))

    def fits(across: int) -> bool:
        whole = len(panels) % across == 0 or len(panels) > FEW
        return whole and across * (layout.left + layout.panel_width) + sum(gutters(across)) <= WIDEST

    across = columns or next(filter(fits, (3, 2)), 1)
    rows, beside = -(-len(panels) // across), gutters(across)
    titles = [
        wrapped(panel.title, layout.panel_width + beside[index % across] - 0.1, bold=True, size=SIZE)
        for index, panel in enumerate(panels)
    ]
    in_rows = [panels[row * across : (row + 1) * across] for row in range(rows)]
    layout = replace(
        layout,
        gutters=beside,
        strip=strip_height([panel.failures for panel in panels]),
        above=layout.above + (max(map(len, titles)) - 1) * SIZE * 1.3 / 72,
        panel_heights=tuple(max(panel.height or layout.panel_height for panel in row) for row in in_rows),
    )
    made = sheet(rows, across, layout, title, footnote)
    for index, (panel, lines) in enumerate(zip(panels, titles, strict=True)):
        axis, below = made.at(index)
        axis.set_title("\n".join(lines), loc="left", weight="bold", linespacing=1.2)
        if panel.y:
            name_y(axis, panel.y, layout)
        panel.draw(axis, layout)
        strip(axis, below, panel.failures, panel.x)
    for index in range(len(panels), rows * across):
        for place in filter(None, made.at(index)):
            place.remove()
    return made.figure


SPEEDS = ("samples_per_second", "interval_low", "interval_high")  # mean, low, high of a configuration's throughput


def interval_line(
    axis: Axes,
    x: NDArray[np.float64],
    rows: pd.DataFrame,
    names: tuple[str, str, str],
    look: SeriesLook,
) -> None:
    """Points joined by a line, with a bar from low to high where there is an interval. `names`: mean, low, high."""
    inside, edge = ("white", look.colour) if look.hollow else (look.colour, "white")
    mean, low, high = (rows[name].astype(float).to_numpy() for name in names)
    axis.plot(
        x,
        mean,
        color=look.colour,
        marker=look.marker,
        linestyle=":" if look.hollow else look.dashes,
        markerfacecolor=inside,
        markeredgecolor=edge,
        markeredgewidth=1.1 if look.hollow else 0.5,
        zorder=3,
    )
    sure = low < high
    if not sure.any():
        return
    at, low, high = x[sure], low[sure], high[sure]
    bars = np.stack([np.column_stack([at, low]), np.column_stack([at, high])], axis=1)
    axis.add_collection(LineCollection(list(bars), colors=look.colour, linewidths=1.0, zorder=3), autolim=False)
    axis.plot(
        np.concatenate([at, at]),
        np.concatenate([low, high]),
        color=look.colour,
        linestyle="",
        marker="_",
        markersize=5.0,
        markeredgewidth=1.0,
        zorder=3,
    )


def ticks(axis: Axes, at: Sequence[float], names: Sequence[str], panel_width: float) -> None:
    """Ticks at these places of the x axis, leaving out names that would touch the one before."""
    low, high = axis.get_xlim()
    shown: dict[float, str] = {}
    free = -np.inf
    for place, name in zip(at, names, strict=True):
        middle, width = (place - low) / (high - low) * panel_width, inches(name, SMALL)
        shown[place] = name if middle - width / 2 > free + 0.06 else ""
        free = middle + width / 2 if shown[place] else free
    ticked(axis.xaxis, FixedLocator(list(shown)), lambda at: shown.get(at, ""))


def even_ticks(axis: Axes, at: Sequence[float], names: Sequence[str], panel_width: float) -> None:
    """Ticks at every one of these evenly spaced places of the x axis, or every second, third ... whose names have
    room."""
    widest = max(inches(name, SMALL) for name in names) + 0.08
    every = max(1, math.ceil(len(names) * widest / panel_width))
    axis.set_xticks(at[::every], names[::every])
    axis.xaxis.set_minor_locator(NullLocator())


# The footnote of every figure: how to read it, the study, the machine, the date, the data.

MEAN, RATIO = "mean", "ratio of means"  # what a point is


def between(results: Results) -> str:
    """`between repeats (Student t)`: the interval of a mean."""
    return f"between {results.repeats_word} (Student t)"


def footnote(
    results: Results, rows: pd.DataFrame, what: str, points: str, method: str, shown: str = "", drawn: str = ""
) -> list[str]:
    """Sentences: `what` is drawn of `rows`, what its `points` are, what the interval is of (`method`), how a
    lone repeat is `shown`, and how that which may not be compared is `drawn`."""
    counts, marked = results.configurations.n, configurations.sentences(rows)
    bars = f"; bars: 95 % interval {method}" if (counts >= 3).any() else ""
    without = f"With fewer than 3 {results.repeats_word} no interval is claimed"
    implied = (configurations.words(rows) == configurations.IMPLIED).any()
    lines = (
        (what, True),
        (f"Points: {points} of {results.repeats}{bars}.", (counts > 0).any()),
        (f"{without}; {shown}." if shown else f"{without}.", counts.between(1, 2).any()),
        ("Crosses: not measured, with the reason at the right.", (rows.status != "ok").any()),
        ("Hollow crosses: not run, as a smaller batch was out of memory.", implied),
        (drawn, bool(marked)),
    )
    said = " ".join(line for line, holds in lines if holds and line)
    return [said, *marked, *notes.how_it_differs(rows), f"{notes.source(results)}."]


def words(figure: Figure) -> tuple[str, str]:
    """(title, everything that is written around the panels) of a figure made by style.sheet."""
    lines = [(text.get_text(), text.get_fontweight() == "bold") for text in figure.texts]
    title = " ".join(text for text, bold in lines if bold)
    return title, " ".join([f"{title}.", *(text for text, bold in lines if not bold)])


def empty(title: str, why: str, results: Results) -> Figure:
    """A figure that says why there is nothing on it."""
    figure = sheet(1, 1, Layout(gutters=(0.6,)), f"{title}: {results.study.name}", [f"{notes.source(results)}."])
    axis = figure.axes[0][0]
    axis.set_axis_off()
    axis.text(0.5, 0.5, "\n".join(why.split(": ")), ha="center", va="center", transform=axis.transAxes)
    return figure.figure
