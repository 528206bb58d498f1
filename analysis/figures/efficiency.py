"""What a larger batch costs: throughput beside goodput, and samples to the target with the critical batch size.

Left, the two as lines of one colour each way of sharing the work; where they part, more speed is lost to more samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.figures import marks, style
from analysis.figures.marks import EndLabel
from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.tables import efficiency as words
from analysis.tables import notes
from analysis.text.file_names import file_name
from analysis.text.number_formats import number
from analysis.to_target import efficiency
from analysis.to_target.critical_batch import Curve
from analysis.to_target.recipes import Recipe, recipes

DODGE = 1.05
CURVE_POINTS = 60
HEIGHT = 2.7
LEGEND_LINE = 0.17  # inches
BEYOND = 4  # times the largest batch, up to which the right panel goes
MOST_LINES = 8  # of the legend, beyond which the lines are drawn and not named


def draw(results: Results) -> dict[str, Figure]:
    """`efficiency-<model>` of each model that reached its target at more than one global batch."""
    rows = efficiency.table(results)
    figures: dict[str, Figure] = {}
    for model in dict.fromkeys(rows.model):
        found = [
            (number, recipe)
            for number, recipe in enumerate(recipes(results), start=1)
            if recipe.model == model and len(recipe.samples) > 1
        ]
        if found:
            ours = rows[rows.recipe.isin([number for number, _ in found]) & rows.goodput.notna()]
            figures[f"efficiency-{file_name(model)}"] = _figure(results, model, ours, [recipe for _, recipe in found])
    return figures


def _figure(results: Results, model: str, rows: pd.DataFrame, found: Sequence[Recipe]) -> Figure:
    names = list(dict.fromkeys(rows.series))
    labels = [_short_name(recipe, results, found) for recipe in found]
    layout = style.Layout(
        panel_width=2.9, panel_height=HEIGHT, left=style.left_of(["1,000 k"]), above=0.3,
        gutters=(marks.gutter(names), marks.gutter(labels if len(found) > 1 else ()))
    )  # fmt: skip
    footnote = [
        "Left: dashed, samples a second; solid, goodput: that x samples to the target at the smallest global batch / "
        "at this one. Bars: 95 % interval over the seeds.",
        "Right: geometric means over the seeds, frameworks and workers of one recipe pooled; bars: 95 %. Line: "
        "samples = Smin (batch + critical), with its 95 % band. Vertical: dashed, the critical batch size [95 %]; "
        "dotted, the gradient noise scale, the median of the configurations' (from the least to the largest).",
        f"{notes.source(results)}.",
    ]
    targets = ", ".join(dict.fromkeys(recipe.target for recipe in found))
    title = f"{model} to {targets}: what a larger batch costs: {results.study.name}"
    sheet = style.sheet(1, 2, layout, title, footnote)
    left, right = sheet.at(0)[0], sheet.at(1)[0]
    _speeds(left, rows, names)
    style.name_y(left, "samples a second", layout)
    ends: list[EndLabel] = []
    for recipe, label, colour in zip(found, labels, style.colours(len(found)), strict=True):
        ends += _samples(right, recipe, label, colour, len(found) > 1)
    style.name_y(right, "samples to the target", layout)
    batches = sorted({batch for recipe in found for batch in recipe.samples})
    _logarithmic(right, batches)
    least, most = right.get_xlim()  # a critical batch far from what was trained does not squeeze it
    right.set_xlim(max(least, batches[0] / BEYOND), min(most, batches[-1] * BEYOND))
    if 0 < (lines := len(right.get_legend_handles_labels()[0])) <= MOST_LINES:
        low, high = right.get_ylim()
        share = lines * LEGEND_LINE / HEIGHT  # of the panel, above all points
        right.set_ylim(top=high * (high / low) ** (share / (1 - share)))
        legend = right.legend(loc="upper left", fontsize=style.SMALL, borderaxespad=0.0, framealpha=1.0)
        legend.get_frame().set_linewidth(0)  # it hides the lines under its words
    if len(found) > 1:
        marks.end_labels(right, ends, HEIGHT)
    return sheet.figure


def _speeds(axis: Axes, rows: pd.DataFrame, names: Sequence[str]) -> None:
    """Against the global batch, a colour each series."""
    labels = []
    for place, (name, colour) in enumerate(zip(names, style.colours(len(names)), strict=True)):
        ours = rows[rows.series == name].sort_values("global_batch")
        at = ours.global_batch * DODGE ** (place - (len(names) - 1) / 2)
        for column, dashes, marker in (("samples_per_second", "--", "s"), ("goodput", "-", "o")):
            axis.plot(at, ours[column], color=colour, linestyle=dashes, marker=marker, markersize=3.5, linewidth=1.2)
            _bars(axis, at, ours, column, colour)
        labels.append(EndLabel(float(at.iloc[-1]), float(ours.goodput.iloc[-1]), name, colour))
    axis.set_title("throughput (dashed) and goodput", loc="left")
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))
    _batches(axis, sorted(set(rows.global_batch)))
    axis.set_xlabel("global batch")
    marks.end_labels(axis, labels, HEIGHT)


def _bars(axis: Axes, at: pd.Series, rows: pd.DataFrame, column: str, colour: str) -> None:
    for x, low, high in zip(at, rows[f"{column}_low"], rows[f"{column}_high"], strict=True):
        if known(low) and known(high):
            axis.plot([x, x], [low, high], color=colour, linewidth=1.0)


def _samples(axis: Axes, recipe: Recipe, label: str, colour: str, several: bool) -> list[EndLabel]:
    """Points, the fitted curve, and vertical lines at the critical batch and the noise scale. The labels to write."""
    batches = sorted(recipe.samples)
    for batch in batches:
        least, most = recipe.samples[batch].bounds()
        if least is not None and most is not None:
            axis.plot([batch, batch], [least, most], color=colour, linewidth=1.2, zorder=3)
    values = [recipe.samples[batch].value for batch in batches]
    axis.plot(batches, values, color=colour, linestyle="", marker="o", markersize=4.5, zorder=4)
    if isinstance(recipe.curve, Curve):
        at = np.geomspace(batches[0], batches[-1], CURVE_POINTS)
        line = [recipe.curve.samples(batch) for batch in at]
        bounds = [one.bounds() for one in line]
        low, high = np.array(bounds, dtype=float).T  # None as nan
        axis.plot(at, [one.value for one in line], color=colour, linewidth=1.3, zorder=2)
        axis.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set_title("samples to the target", loc="left")
    axis.set_xlabel("global batch")
    _vertical(axis, recipe, colour, several)
    return [EndLabel(batches[-1], values[-1], label, colour)]


def _vertical(axis: Axes, recipe: Recipe, colour: str, several: bool) -> None:
    """The critical batch size and the gradient noise scale, with what they are in the panel's legend."""
    curve = recipe.curve
    if isinstance(curve, Curve) and curve.critical is not None:
        axis.axvline(
            curve.critical, color=colour, linestyle="--", linewidth=1.0, zorder=1,
            label=f"critical batch: {words.critical(curve).replace(' samples', '')}",
        )  # fmt: skip
        if curve.low is not None and curve.high is not None:
            axis.axvspan(curve.low, curve.high, color=colour, alpha=0.1, linewidth=0, zorder=0)
    scales = [one.noise.scale for one in recipe.trained if one.noise and one.noise.scale]
    if scales:
        least, middle, most = (number(float(np.quantile(scales, at))) for at in (0, 0.5, 1))
        spread = f" ({least} to {most})" if len(scales) > 1 else ""
        axis.axvline(
            float(np.median(scales)), color=colour if several else style.DARK, linestyle=":", linewidth=1.2, zorder=1,
            label=f"noise scale: {middle}{spread}",
        )  # fmt: skip


def _short_name(recipe: Recipe, results: Results, found: Sequence[Recipe]) -> str:
    """What tells it apart from the others of its model."""
    start = f"{recipe.model} to {recipe.target}"
    others = words.name(recipe, results).removeprefix(start).removeprefix(", ")
    same_target = len({one.target for one in found}) == 1
    return others if others and same_target else ", ".join(filter(None, (recipe.target, others)))


def _batches(axis: Axes, batches: Sequence[int]) -> None:
    axis.set_xscale("log")
    axis.set_xticks(list(batches), [str(batch) for batch in batches])
    axis.xaxis.set_minor_locator(NullLocator())


def _logarithmic(axis: Axes, batches: Sequence[int]) -> None:
    _batches(axis, batches)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1000:,g} k" if value >= 1000 else number(value))
    )
