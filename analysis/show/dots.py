"""Dot plots: a row for each configuration, with its value, its 95 % interval, and both as text beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from analysis.frames.configurations import known
from analysis.show import style

ROW, NAME_LINE = 0.2, 0.12  # inches of a row, and of each further line of its name
NAME_WIDTH = 2.4  # inches, beyond which a name goes on in another line
MOST_ROWS = 40  # of a panel
CROSS, HOLLOW_CROSS = "x", "X"  # markers where there is no value: not measured; not even run


@dataclass(frozen=True)
class Dot:
    """One row. `at` None: there is no value, and `marker` is a cross, a hollow one or empty. `ends`: of the interval,
    which may be infinite; None where none is claimed."""

    name: str
    text: str
    at: float | None
    ends: tuple[float, float] | None = None
    colour: str = style.GREY
    marker: str = "o"
    hollow: bool = False
    ink: str = style.DARK  # of the text


@dataclass(frozen=True)
class DotPanel:
    """`lines`: vertical ones, place -> dashes. `ticks`: as many as fit where none are given."""

    title: str
    x: str
    dots: Sequence[Dot]
    limits: tuple[float, float]
    lines: Mapping[float, str] = field(default_factory=dict)
    ticks: Sequence[float] = ()
    number: Callable[[float], str] = "{:,.10g}".format


def interval(low: Any, high: Any) -> tuple[float, float] | None:
    """The ends of an interval: None where neither is known, infinite where one is not."""
    if not known(low) and not known(high):
        return None
    return float(low) if known(low) else -math.inf, float(high) if known(high) else math.inf


def from_zero(dots: Sequence[Dot], *shown: float) -> tuple[float, float]:
    """Limits from 0, with room for `shown` and for every interval up to twice the largest value."""
    most = max([dot.at for dot in dots if dot.at is not None] + list(shown), default=1.0)
    ends = [dot.ends[1] for dot in dots if dot.ends]
    return 0.0, 1.06 * max([most, *(min(end, 2 * most) for end in ends)])


def around(dots: Sequence[Dot], *shown: float) -> tuple[float, float]:
    """Limits with room for `shown`, every value, and every interval up to three times as far as the values spread."""
    values = [*(dot.at for dot in dots if dot.at is not None), *shown]
    low, high = min(values, default=0.0), max(values, default=1.0)
    reach = max(high - low, 0.02 * abs(high))
    ends = [end for dot in dots for end in dot.ends or ()]
    low, high = max(min([low, *ends]), low - 3 * reach), min(max([high, *ends]), high + 3 * reach)
    room = 0.06 * max(high - low, 1e-9)
    return low - room, high + room


def figure(title: str, panels: Sequence[DotPanel], footnote: Sequence[str]) -> Figure:
    """Panels below each other, with names left of the rows and texts right of them."""
    names = [[style.wrapped(dot.name, NAME_WIDTH) for dot in panel.dots] for panel in panels]
    widest = max(style.inches(line, style.SMALL) for rows in names for lines in rows for line in lines)
    if any(_beyond(dot, panel) for panel in panels for dot in panel.dots):
        footnote = [f"{footnote[0]} Arrows: the interval is wider than the axis.", *footnote[1:]]
    arranged = [
        style.Panel(
            panel.title,
            partial(_panel, panel=panel, names=rows),
            x=panel.x,
            labels=[dot.text for dot in panel.dots],
            height=sum(map(_height, rows)) + 0.1,
        )
        for panel, rows in zip(panels, names, strict=True)
    ]
    titled = any(panel.title for panel in panels)
    return style.figure_of(title, arranged, footnote, 1, left=0.25 + widest, above=0.32 if titled else 0.12)


def _height(lines: Sequence[str]) -> float:
    return ROW + NAME_LINE * (len(lines) - 1)


def _panel(axis: Axes, _: style.Layout, panel: DotPanel, names: Sequence[Sequence[str]]) -> None:
    heights = [_height(lines) for lines in names]
    downs = list(accumulate(heights, initial=0.05))
    places = [down + height / 2 for down, height in zip(downs, heights, strict=False)]
    axis.set_xlim(*panel.limits)
    axis.set_ylim(downs[-1] + 0.05, 0)
    for at, dashes in panel.lines.items():
        axis.axvline(at, color=style.DARK, linestyle=dashes, linewidth=0.9, zorder=2)
    for place, dot in zip(places, panel.dots, strict=True):
        _draw(axis, place, dot, panel)
        style.beside(axis, place, dot.text, dot.ink)
    style.row_names(axis, places, ["\n".join(lines) for lines in names], va="center", linespacing=1.1)
    style.ticked(
        axis.xaxis,
        FixedLocator(list(panel.ticks)) if panel.ticks else MaxNLocator(4, steps=style.STEPS),
        panel.number,
    )


def _draw(axis: Axes, y: float, dot: Dot, panel: DotPanel) -> None:
    low, high = panel.limits
    if dot.at is None:
        if dot.marker:
            style.cross(axis, low + 0.03 * (high - low), y, style.DARK, dot.marker == HOLLOW_CROSS)
        return
    if dot.ends:
        ends = max(dot.ends[0], low), min(dot.ends[1], high)
        axis.plot(ends, [y, y], color=dot.colour, linewidth=1.3, zorder=3)
    for edge, marker in _beyond(dot, panel):
        axis.plot(edge, y, linestyle="", marker=marker, markersize=4, color=dot.colour, clip_on=False, zorder=3)
    axis.plot(
        dot.at,
        y,
        linestyle="",
        marker=dot.marker,
        markersize=5.5,
        markerfacecolor="white" if dot.hollow else dot.colour,
        markeredgecolor=dot.colour,
        markeredgewidth=1.2,
        zorder=4,
    )


def _beyond(dot: Dot, panel: DotPanel) -> list[tuple[float, str]]:
    """(edge of the panel, marker) where the interval ends outside of it."""
    if dot.at is None or not dot.ends:
        return []
    low, high = panel.limits
    sides = ((low, "<", dot.ends[0] < low), (high, ">", dot.ends[1] > high))
    return [(edge, marker) for edge, marker, beyond in sides if beyond]
