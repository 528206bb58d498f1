"""The machine over the time of the sweep: each run against the mean of its configuration, with the trend.

What a study without drift shows is a level cloud as thick as the noise floor. The sentinel, where there is one, is a
line through it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis.figures import marks, style
from analysis.figures.marks import EndLabel
from analysis.findings import noise
from analysis.findings.noise import Drift, Floor
from analysis.frames.results import Results
from analysis.tables import notes
from analysis.tables.findings import drift_text, floor_text

SHORT = 2.0  # hours; below, the axis is in minutes
SENTINEL = "the sentinel"


def draw(results: Results) -> dict[str, Figure]:
    """`drift`, where enough configurations were repeated for a floor or a trend."""
    runs = noise.table(results)
    least, moved = noise.floor(runs), noise.drift(runs)
    if least is None and moved is None:
        return {}
    blue, orange = style.colours(2)
    layout = style.Layout(
        panel_width=4.6, panel_height=2.0, left=style.left_of(["+10.0 %"]), above=0.16,
        gutters=(marks.gutter([SENTINEL]) if runs.sentinel.any() else 0.2,),
    )  # fmt: skip
    title, footnote = f"The machine over the sweep: {results.study.name}", _footnote(results, least, moved)
    sheet = style.sheet(1, 1, layout, title, footnote)
    axis, _ = sheet.at(0)
    hours = float(runs.hours.max())
    scale, unit = (60.0, "minutes") if hours < SHORT else (1.0, "hours")
    at = scale * runs.hours.to_numpy(float)
    if least is not None:
        axis.axhspan(-least.spread, least.spread, color=style.PALE, zorder=0)
    axis.axhline(0.0, color=style.GREY, linewidth=0.8, zorder=1)
    axis.plot(at, runs.relative, linestyle="", marker="o", markersize=3, color=blue, alpha=0.6, markeredgewidth=0)
    labels = _sentinel(axis, runs, at, orange)
    if moved is not None:
        trend = np.expm1(np.log1p(moved.total) * (runs.place.to_numpy(float) - 0.5))
        axis.plot(at, trend, color=style.DARK, linestyle="-" if moved.found else ":", linewidth=1.2, zorder=4)
    style.name_y(axis, "against its own mean", layout)
    axis.set_xlabel(f"{unit} since the first run began")
    axis.grid(False, axis="x")
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:+.3g} %" if value else "0"))
    marks.end_labels(axis, labels, layout.panel_height)
    return {"drift": sheet.figure}


def _sentinel(axis: Axes, runs: pd.DataFrame, at: noise.Values, colour: str) -> list[EndLabel]:
    ours = runs.sentinel.to_numpy(bool)
    if not ours.any():
        return []
    relative = runs.relative.to_numpy(float)[ours]
    axis.plot(at[ours], relative, marker="D", markersize=4, color=colour, linewidth=1.0, zorder=3)
    return [EndLabel(float(at[ours][-1]), float(relative[-1]), SENTINEL, colour)]


def _footnote(results: Results, least: Floor | None, moved: Drift | None) -> list[str]:
    lines = ["Points: samples per second of one run, against the mean of all repeats of its configuration."]
    lines += [f"Shaded: {floor_text(least)}"] if least is not None else []
    lines.append(f"Line: {drift_text(moved)}" if moved is not None else drift_text(moved))
    return [*lines, f"{notes.source(results)}."]
