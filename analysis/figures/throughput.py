"""Throughput against batch size: a panel for each model, a line for each worker count and allreduce precision."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.configurations import values
from analysis.figures import captions, marks, style
from analysis.figures.captions import MEAN
from analysis.figures.marks import EndLabel, Failure
from analysis.results import Results
from scaling_study.frameworks import FRAMEWORKS

MOST_COLUMNS = 2
MOST_COLOURS = 7  # lines in a panel that have a colour of their own; beyond, shades say workers, dashes precision
MOST_LABELS = 24  # lines in a panel that are named; beyond, only the fastest and the slowest
LOGARITHMIC_FROM = 25  # largest over smallest throughput of a panel
DASHES = {"none": "-", "fp32": "-", "fp16": "--", "bf16": "-."}
NAMES = ("samples_per_second", "interval_low", "interval_high")


@dataclass(frozen=True)
class Look:
    """How one series is drawn, the same in every panel."""

    colour: str
    marker: str
    dashes: str = "-"


def draw(results: Results) -> Figure:
    """The figure; with no finished trial, one that says so."""
    if not results.models:
        return captions.empty("Throughput", "no finished trial in this study yet", results)
    looks = _looks(results.configurations)
    panels = _panels(results, many=len(looks) > MOST_COLOURS)
    failed = [_failures(rows, looks) for rows in panels.values()]
    columns = min(len(panels), MOST_COLUMNS)
    texts = [
        [*rows.series, *(f.text for f in marks.merged(bad))] for rows, bad in zip(panels.values(), failed, strict=True)
    ]
    fastest = [rows.samples_per_second.max() for rows in panels.values()]
    most = max(rows.series.nunique() for rows in panels.values())
    layout = style.Layout(
        left=style.left_of([f"{0 if pd.isna(speed) else speed:,.0f}" for speed in fastest]),
        panel_width=2.4 if results.configurations.batch.nunique() > 1 else 1.5,
        panel_height=max(2.3, (min(most, MOST_LABELS) + 1) * marks.GAP),
        gutters=tuple(marks.gutter(t for of in texts[column::columns] for t in of) for column in range(columns)),
        strip=marks.strip_height(failed),
    )
    what = f"Of {most} lines, the fastest and the slowest are named; tables/ has all." if most > MOST_LABELS else ""
    footnote = captions.footnote(results, what, MEAN, "Student t", "dashes show the single repeats")
    title = f"Throughput by batch size: {results.study.name}"
    sheet = style.sheet(-(-len(panels) // columns), columns, layout, title, footnote)
    for index, (name, rows) in enumerate(panels.items()):
        axis, strip = sheet.at(index)
        axis.set_title(name, loc="left", weight="bold")
        style.name_y(axis, "throughput (samples/s)", layout)
        _scale(axis, results.configurations[results.configurations.model.isin(rows.model)])  # one for all of a model
        _panel(axis, rows, looks, layout)
        marks.strip(axis, strip, failed[index], f"{results.study.batch_key.replace('_', ' ')} (samples)")
    for index in range(len(panels), len(sheet.axes) * columns):
        style.remove(sheet, index)
    return sheet.figure


def _panels(results: Results, many: bool) -> dict[str, pd.DataFrame]:
    """Title -> configurations: one a model, or, where lines are many, one a model and framework.

    A framework that only ever has one worker is a reference to the others, and shown with each of them.
    """
    data = results.configurations
    every = list(data.sort_values("series_order").framework.unique())
    frameworks, alone = [f for f in every if not _alone(f)], [f for f in every if _alone(f)]
    if not many or len(frameworks) < 2:
        return {model: data[data.model == model] for model in results.models}
    panels = {
        f"{model}, {framework}": data[(data.model == model) & data.framework.isin([framework, *alone])]
        for model in results.models
        for framework in frameworks
    }
    return {name: rows for name, rows in panels.items() if len(rows)}


def _alone(framework: str) -> bool:
    return framework in FRAMEWORKS and FRAMEWORKS[framework].axes.get("workers") == (1,)


def _looks(data: pd.DataFrame) -> dict[str, Look]:
    first = data.sort_values("series_order").drop_duplicates("series")
    if len(first) <= MOST_COLOURS:
        colours = style.colours(len(first))
        return {name: Look(colours[i], style.MARKERS[i]) for i, name in enumerate(first.series)}
    workers = sorted(first.workers.unique())
    shade = dict(zip(workers, style.shades(len(workers)), strict=True))
    return {
        row["series"]: Look(
            style.GREY if _alone(row["framework"]) else shade[row["workers"]],
            style.MARKERS[workers.index(row["workers"]) % len(style.MARKERS)],
            DASHES.get(row["allreduce"], "-"),
        )
        for row in first.to_dict("records")
    }


def _panel(axis: Axes, rows: pd.DataFrame, looks: dict[str, Look], layout: style.Layout) -> None:
    batches = sorted(rows.batch.unique())
    span = max(math.log2(batches[-1] / batches[0]), 1.0)
    present = [name for name in looks if (rows.series == name).any()]
    labels = []
    axis.set_xlim(math.log2(batches[0]) - 0.12 * span, math.log2(batches[-1]) + 0.12 * span)
    for index, name in enumerate(present):
        good = rows[(rows.series == name) & (rows.status == "ok")].sort_values("batch")
        if good.empty:
            continue
        look, means = looks[name], good.samples_per_second
        dodge = (index - (len(present) - 1) / 2) * min(0.03, 0.15 / len(present)) * span
        x = np.log2(good.batch.to_numpy(dtype=float)) + dodge
        marks.interval_line(axis, x, good, NAMES, look.colour, look.marker, look.dashes)
        for at, row in zip(x, good.to_dict("records"), strict=True):
            if row["n"] < 3:  # no interval is claimed: show the repeats themselves
                axis.plot([at] * row["n"], values(row), linestyle="", marker="_", color=look.colour, markersize=7)
        labels.append(EndLabel(float(x[-1]), float(means.iloc[-1]), name, look.colour))
    if not labels:
        axis.text(0.5, 0.5, "nothing measured", ha="center", va="center", transform=axis.transAxes)
        axis.yaxis.set_major_locator(NullLocator())
    axis.grid(False, axis="x")
    marks.ticks(axis, [math.log2(batch) for batch in batches], [str(batch) for batch in batches], layout.panel_width)
    if len(labels) > MOST_LABELS:
        labels.sort(key=lambda label: label.y)
        labels = [labels[0], labels[-1]]
    marks.end_labels(axis, labels, layout.panel_height)


def _scale(axis: Axes, rows: pd.DataFrame) -> None:
    """From 0, unless that would press the slow ones together; room for every interval up to twice the fastest."""
    least, most = rows.samples_per_second.min(), rows.samples_per_second.max()
    top = 1.0 if pd.isna(most) else min(np.nanmax([most, rows.interval_high.max()]) * 1.06, 2 * most)
    if not pd.isna(most) and most / least > LOGARITHMIC_FROM:
        axis.set_yscale("log")
        axis.set_ylim(0.7 * least, 1.15 * top)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_locator(NullLocator())
    else:
        axis.set_ylim(0, top)
        axis.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _failures(rows: pd.DataFrame, looks: dict[str, Look]) -> list[Failure]:
    bad = rows[rows.status != "ok"].sort_values(["series_order", "batch"])
    return [
        Failure(
            tuple(math.log2(batch) for batch in group.batch),
            marks.failure_text(str(name), [(s, str(b)) for s, b in zip(group.status, group.batch, strict=True)]),
            looks[str(name)].colour,
        )
        for name, group in bad.groupby("series", sort=False)
    ]
