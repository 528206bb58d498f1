"""What panels have in common: labels at the ends of lines, intervals, and the strip of what was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from analysis.figures import style
from analysis.figures.series_styles import Look

GAP = style.SMALL * 1.45 / 72  # inches between two labels
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
        axis.text(1.05, place, label.text, va="center", fontsize=style.SMALL, transform=axis.transAxes)
    # Lines of their own: an annotation's arrow looks for where it leaves its text, which takes long.
    ties = [
        np.array([to_axes.transform((label.x, label.y)), (1.04, place)])
        for label, place in zip(ordered, places, strict=True)
    ]
    axis.add_collection(
        LineCollection(
            ties, colors=[label.colour for label in ordered], linewidths=0.9, linestyles=":", clip_on=False,
            transform=axis.transAxes, zorder=1.5,
        ),
        autolim=False,
    )  # fmt: skip


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
    return [Failure(tuple(sorted(xs)), f"{len(failures)} not measured (tables)", style.GREY, frozenset(xs - measured))]


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
    below.set_facecolor(style.PALE)
    below.grid(False)
    rows = merged(failures)
    below.set_ylim(len(rows) - 0.4, -0.6)
    below.yaxis.set_major_locator(NullLocator())
    for index, failure in enumerate(rows):
        for x in failure.xs:
            cross(below, x, index, failure.colour, x in failure.implied)
        below.annotate(
            failure.text, xy=(1.05, index), xycoords=("axes fraction", "data"), va="center", fontsize=style.SMALL,
            annotation_clip=False,
        )  # fmt: skip


def cross(axis: Axes, x: float, y: float, colour: str, implied: bool) -> None:
    """Where a value is missing: a cross, hollow where it is only implied that there is none."""
    looks = {"marker": "X", "markerfacecolor": "white", "markeredgewidth": 0.9, "markersize": 6.5} if implied else {
        "marker": "x", "markeredgewidth": 1.6, "markersize": 5,
    }  # fmt: skip
    axis.plot([x], [y], linestyle="", color=colour, clip_on=False, zorder=3, **looks)  # type: ignore[arg-type]


def gutter(texts: Iterable[str], titles: Iterable[str] = (), panel_width: float = 0.0) -> float:
    """Inches that labels with these texts need beside a panel, and its title, which starts above its left edge."""
    beyond = max((style.inches(title, bold=True) for title in titles), default=0.0) - panel_width - 0.4
    return max(0.35 + max((style.inches(text, style.SMALL) for text in texts), default=0.0), beyond)


def failure_text(name: str, statuses: Sequence[tuple[str, str]]) -> str:
    """`fp32: oom at 256, 512; timeout at 1024` from (status, where) pairs."""
    where = {status: [at for word, at in statuses if word == status] for status, _ in statuses}
    return f"{name}: " + "; ".join(f"{status} at {', '.join(at)}" for status, at in where.items())


def interval_line(
    axis: Axes, x: NDArray[np.float64], rows: pd.DataFrame, names: tuple[str, str, str], look: Look,
) -> None:  # fmt: skip
    """Points joined by a line, with a bar from low to high where there is an interval. `names`: mean, low, high."""
    inside, edge = ("white", look.colour) if look.hollow else (look.colour, "white")
    mean, low, high = (rows[name].astype(float).to_numpy() for name in names)
    axis.plot(
        x, mean, color=look.colour, marker=look.marker, linestyle=":" if look.hollow else look.dashes,
        markerfacecolor=inside, markeredgecolor=edge, markeredgewidth=1.1 if look.hollow else 0.5, zorder=3,
    )  # fmt: skip
    sure = low < high
    if not sure.any():
        return
    at, low, high = x[sure], low[sure], high[sure]
    bars = np.stack([np.column_stack([at, low]), np.column_stack([at, high])], axis=1)
    axis.add_collection(LineCollection(list(bars), colors=look.colour, linewidths=1.0, zorder=3), autolim=False)
    axis.plot(
        np.concatenate([at, at]), np.concatenate([low, high]), color=look.colour, linestyle="", marker="_",
        markersize=5.0, markeredgewidth=1.0, zorder=3,
    )  # fmt: skip


def ticks(axis: Axes, at: Sequence[float], names: Sequence[str], panel_width: float) -> None:
    """Ticks at these places of the x axis, leaving out names that would touch the one before."""
    low, high = axis.get_xlim()
    shown: dict[float, str] = {}
    free = -np.inf
    for place, name in zip(at, names, strict=True):
        middle, width = (place - low) / (high - low) * panel_width, style.inches(name, style.SMALL)
        shown[place] = name if middle - width / 2 > free + 0.06 else ""
        free = middle + width / 2 if shown[place] else free
    axis.xaxis.set_major_locator(FixedLocator(list(shown)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda at, _: next((n for p, n in shown.items() if p == at), "")))
    axis.xaxis.set_minor_locator(NullLocator())
