"""Throughput against batch size: a panel for each model, a line for each worker count and allreduce precision."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.figures import captions, marks, series_styles, style
from analysis.figures.captions import MEAN
from analysis.figures.marks import EndLabel, Failure
from analysis.figures.series_styles import Look
from analysis.frames import outcomes
from analysis.frames.configurations import values
from analysis.frames.results import Results, unit
from analysis.frames.rows import as_rows

MANY_PANELS = 4  # beyond, three side by side instead of two
MOST_PANELS = 24  # a study with more shows its first ones here and all in its tables
MOST_LABELS = 24  # lines in a panel that are named; beyond, only the fastest and the slowest
LOGARITHMIC_FROM = 25  # largest over smallest throughput of a panel
NAMES = ("samples_per_second", "interval_low", "interval_high")
SHOWN = (
    *("model", "framework", "series", "series_order", "batch", "status", "reason", "n", "repeat_values"),
    *("tokens_per_second", *NAMES),
)  # of each configuration: slices of few columns are taken in no time


@dataclass(frozen=True)
class Panel:
    """Its title, its configurations, and what their labels need not say because the title does."""

    title: str
    rows: pd.DataFrame
    said: str = ""

    def label(self, series: str, look: Look) -> str:
        return f"{series.removeprefix(self.said)} {look.sign}".rstrip()


def draw(results: Results) -> Figure:
    """The figure; with no finished trial, one that says so."""
    if results.nothing_yet:
        return captions.empty("Throughput", results.nothing_yet, results)
    look = series_styles.of(results.configurations)
    arranged = _panels(results, many=len(look) > series_styles.MOST_COLOURS)
    panels = arranged[:MOST_PANELS]
    failed = [_failures(panel, look) for panel in panels]
    columns = min(len(panels), 3 if len(panels) > MANY_PANELS else 2)
    texts = [
        [*(panel.label(name, look[name]) for name in panel.rows.series), *(f.text for f in marks.merged(bad))]
        for panel, bad in zip(panels, failed, strict=True)
    ]
    fastest = [panel.rows.samples_per_second.max() for panel in panels]
    most = max(panel.rows.series.nunique() for panel in panels)
    width = 2.4 if results.configurations.batch.nunique() > 1 else 1.5
    layout = style.Layout(
        left=style.left_of([f"{0 if pd.isna(speed) else speed:,.0f}" for speed in fastest]),
        panel_width=width,
        panel_height=max(2.3, (min(most, MOST_LABELS) + 1) * 1.4 * marks.GAP),
        gutters=tuple(
            marks.gutter(
                (t for of in texts[column::columns] for t in of),
                (panel.title for panel in panels[column::columns]),
                width,
            )
            for column in range(columns)
        ),
        strip=marks.strip_height(failed),
    )
    what = f"Of {most} lines, the fastest and the slowest are named; tables/ has all." if most > MOST_LABELS else ""
    if len(arranged) > len(panels):
        what = f"The first {len(panels)} of {len(arranged)} panels; tables/ has all. {what}".rstrip()
    footnote = captions.footnote(
        results, results.configurations, what, MEAN, captions.BETWEEN_REPEATS, "dashes show the single repeats",
        "Hollow and grey: not comparable.",
    )  # fmt: skip
    title = f"Throughput by batch size: {results.study.name}"
    sheet = style.sheet(-(-len(panels) // columns), columns, layout, title, footnote)
    every = results.configurations[list(SHOWN)]
    for index, panel in enumerate(panels):
        axis, strip = sheet.at(index)
        axis.set_title(panel.title, loc="left", weight="bold")
        model = every[every.model.isin(panel.rows.model)]
        style.name_y(axis, f"throughput ({unit(model)}/s)", layout)
        _scale(axis, model)  # one for all panels of a model
        _panel(axis, panel, look, layout)
        marks.strip(axis, strip, failed[index], f"{results.study.batch_key.replace('_', ' ')} (samples)")
    for index in range(len(panels), len(sheet.axes) * columns):
        style.remove(sheet, index)
    return sheet.figure


def _panels(results: Results, many: bool) -> list[Panel]:
    """One panel a model, or, where lines are many, one a model and framework.

    A framework that only ever has one worker is a reference to the others, and shown with each of them.
    """
    data = results.configurations[list(SHOWN)]
    every = list(data.sort_values("series_order").framework.unique())
    frameworks, alone = [f for f in every if not series_styles.alone(f)], [f for f in every if series_styles.alone(f)]
    if not many or len(frameworks) < 2:
        return [Panel(model, data[data.model == model]) for model in results.models]
    panels = []
    for model in results.models:
        for framework in frameworks:
            rows = data[(data.model == model) & data.framework.isin([framework, *alone])]
            if (rows.framework == framework).any():
                panels.append(Panel(f"{model}, {framework}", rows, f"{framework}, "))
    return panels or [Panel(model, data[data.model == model]) for model in results.models]


def _panel(axis: Axes, panel: Panel, look: dict[str, Look], layout: style.Layout) -> None:
    rows = panel.rows
    batches = sorted(rows.batch.unique())
    lone = len(batches) == 1  # a column of points: apart from each other, as there are no lines to follow
    span = max(math.log2(batches[-1] / batches[0]), 1.0)
    present = [name for name in look if (rows.series == name).any()]
    labels = []
    margin, most, whole = (0.6, 0.08, 0.9) if lone else (0.12, 0.03, 0.15)
    axis.set_xlim(math.log2(batches[0]) - margin * span, math.log2(batches[-1]) + margin * span)
    for index, name in enumerate(present):
        good = rows[(rows.series == name) & (rows.status == "ok")].sort_values("batch")
        if good.empty:
            continue
        ours, means = look[name], good.samples_per_second
        dodge = (index - (len(present) - 1) / 2) * min(most, whole / len(present)) * span
        x = np.log2(good.batch.to_numpy(dtype=float)) + dodge
        marks.interval_line(axis, x, good, NAMES, ours)
        for at, row in zip(x, as_rows(good[["n", "repeat_values"]]), strict=True):
            if row["n"] < 3:  # no interval is claimed: show the repeats themselves
                axis.plot([at] * row["n"], values(row), linestyle="", marker="_", color=ours.colour, markersize=7)
        labels.append(EndLabel(float(x[-1]), float(means.iloc[-1]), panel.label(name, ours), ours.colour))
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


def _failures(panel: Panel, look: dict[str, Look]) -> list[Failure]:
    bad = panel.rows[panel.rows.status != "ok"].sort_values(["series_order", "batch"])
    bad = bad.assign(word=outcomes.words(bad), x=[math.log2(batch) for batch in bad.batch])
    return [
        Failure(
            tuple(group.x),
            marks.failure_text(
                panel.label(str(name), look[str(name)]),
                [(word, str(b)) for word, b in zip(group.word, group.batch, strict=True)],
            ),
            look[str(name)].colour,
            frozenset(group.x[group.word == outcomes.IMPLIED]),
        )
        for name, group in bad.groupby("series", sort=False)
    ]
