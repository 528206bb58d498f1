"""How the steps of each run were spread: a figure a model, a row for each series at one batch size, a box a repeat.

A mean says nothing of the step in a hundred that takes twice as long, nor of a repeat that was slower throughout. Steps
are against the configuration's own median, or the slowest series would be all that one sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from analysis.figures import style
from analysis.frames.cache import once
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows
from analysis.tables import notes
from analysis.text.file_names import file_name
from analysis.text.number_formats import three_digits

MOST_ROWS, MOST_REPEATS = 40, 10
REPEAT, ROW = 0.065, 0.2  # inches: a repeat, and what a row has at least
WIDTH = 3.6
WIDEST = (-0.6, 1.0)  # of the axis; what lies beyond is a mark at its edge
INNER, OUTER = style.colours(1)[0], style.GREY
HEADINGS = ("median", "1 in 100")


@dataclass(frozen=True)
class Spread:
    """One configuration: its median step in seconds, and each repeat's quantiles against it, (repeats, quantiles)."""

    row: ConfigurationRow
    median_seconds: float
    repeats: pd.DataFrame

    @property
    def slow(self) -> float:
        """By how much the slowest hundredth of its steps are slower than the median, in its median repeat."""
        return float(self.repeats.p99.median())


def draw(results: Results) -> dict[str, Figure]:
    """`distributions-<model>`, for each model with timed steps."""
    figures = {}
    for model in results.models:
        rows = results.frame_of(model)
        rows = rows[rows.n > 0]
        if len(rows):
            batch = max(rows.batch, key=lambda size: (int((rows.batch == size).sum()), int(size)))
            ours = as_rows(rows[rows.batch == batch].sort_values("series_order", kind="stable"), ConfigurationRow)
            every = [
                distribution for distribution in (spread(results, row) for row in ours) if distribution is not None
            ]
            if every:
                figures[f"distributions-{file_name(model)}"] = _figure(model, int(batch), every, len(rows), results)
    return figures


def spread(results: Results, row: ConfigurationRow) -> Spread | None:
    """None where no repeat has timed steps."""
    ours = _steps(results).get(str(row["configuration"]))
    if ours is None:
        return None
    median = float(ours.p50_seconds.median())
    quantiles = ours.filter(like="_seconds") / median - 1
    return Spread(row, median, quantiles.rename(columns=lambda name: name.removesuffix("_seconds")))


@once
def _steps(results: Results) -> dict[str, pd.DataFrame]:
    """Configuration -> what is known of its steps, a row a repeat."""
    every = results.details.steps.sort_values("repeat", kind="stable")
    return {str(name): rows for name, rows in every.groupby("configuration", sort=False)}


def _figure(model: str, batch: int, every: Sequence[Spread], of: int, results: Results) -> Figure:
    shown = every[:MOST_ROWS]
    names = [str(distribution.row["series"]) for distribution in shown]
    texts = [
        (f"{three_digits(1000 * distribution.median_seconds)} ms", f"{100 * distribution.slow:+.0f} %")
        for distribution in shown
    ]
    most = max(min(len(distribution.repeats), MOST_REPEATS) for distribution in shown)
    height = max(ROW, REPEAT * most + 0.07)
    first = 0.2 + max(style.inches(text, style.SMALL) for text, _ in [*texts, (HEADINGS[0], "")])
    layout = style.Layout(
        panel_width=WIDTH, panel_height=len(shown) * height + 0.1, above=0.34, below=0.45,
        left=0.25 + max(style.inches(name, style.SMALL) for name in names),
        gutters=(first + 0.3 + style.inches(HEADINGS[1], style.SMALL),),
    )  # fmt: skip
    title = f"Step times: {model}, batch {batch} ({results.study.name})"
    sheet = style.sheet(1, 1, layout, title, _footnote(shown, every, of, results))
    axis, _ = sheet.at(0)
    low, high = _bounds(shown)
    _lines(axis, shown, high)
    for index in range(len(shown)):
        _beside(axis, texts[index], xy=(1.0, index), units=("axes fraction", "data"), first=first)
    _beside(axis, HEADINGS, xy=(1.0, 1.0), units=("axes fraction", "axes fraction"), first=first, up=7)
    axis.axvline(0.0, color=style.GREY, linewidth=0.8, zorder=1)
    axis.set_xlim(low, high)
    axis.set_ylim(len(shown) - 0.45, -0.55)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", length=0)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:+.3g} %" if value else "median"))
    axis.set_xlabel("seconds of a step, against the median of its configuration")
    axis.grid(False, axis="y")
    return sheet.figure


def _bounds(shown: Sequence[Spread]) -> tuple[float, float]:
    """Where the axis begins and ends: every repeat's 5 to 99 %, if that is within WIDEST."""
    least = min(float(distribution.repeats.p5.min()) for distribution in shown)
    most = max(float(distribution.repeats.p99.max()) for distribution in shown)
    room = max(0.05 * (most - least), 0.005)
    return max(WIDEST[0], least - room), min(WIDEST[1], most + room)


def _lines(axis: Axes, shown: Sequence[Spread], high: float) -> None:
    """Lines from 5 to 95 %, boxes from 25 to 75 %, a tick at the median; the slowest hundredth and the slowest."""
    repeats = [distribution.repeats.iloc[:MOST_REPEATS] for distribution in shown]
    offsets = [0.66 * ((np.arange(len(ours)) + 0.5) / len(ours) - 0.5) for ours in repeats]
    at = np.concatenate([index + offset for index, offset in enumerate(offsets)])
    every = pd.concat(repeats)
    axis.hlines(at, every.p5, every.p95, color=INNER, linewidth=0.9, alpha=0.75, zorder=2)
    axis.hlines(at, every.p25, every.p75, color=INNER, linewidth=2.6, zorder=3)
    axis.plot(every.p50, at, linestyle="", marker="|", markersize=3.2, color=style.DARK, markeredgewidth=1.0, zorder=5)
    for name, sign in (("p99", "|"), ("most", ".")):
        values = every[name].to_numpy(float)
        for beyond, marker in ((values > high, ">"), (values <= high, sign)):
            axis.plot(
                np.minimum(values, high)[beyond], at[beyond], linestyle="", marker=marker, markersize=2.6, color=OUTER,
                markeredgewidth=0.8, clip_on=False, zorder=4,
            )  # fmt: skip


def _beside(
    axis: Axes, texts: tuple[str, str], xy: tuple[float, float], units: tuple[str, str], first: float, up: float = 0
) -> None:
    """Two texts right of the panel, in columns."""
    for text, right in zip(texts, (0.1, first + 0.1), strict=True):
        axis.annotate(
            text, xy=xy, xycoords=units, xytext=(72 * right, up), textcoords="offset points", va="center", ha="left",
            fontsize=style.SMALL, color=style.DARK if not up else style.GREY, annotation_clip=False,
        )  # fmt: skip


def _footnote(shown: Sequence[Spread], every: Sequence[Spread], of: int, results: Results) -> list[str]:
    what = (
        "A line a repeat: 5 to 95 % of its timed steps, of the slowest rank; thick: 25 to 75 %; tick: the median; "
        "grey: from the 99th percentile to the slowest. 1 in 100: how much that percentile is above the median, "
        "at least."
    )
    if any(len(distribution.repeats) > MOST_REPEATS for distribution in shown):
        what += f" The first {MOST_REPEATS} repeats."
    if len(every) > len(shown):
        what += f" The first {len(shown)} of {len(every)} series."
    if of > len(every):
        what += " Other batch sizes: samples.npz."
    return [what, f"{notes.source(results)}."]
