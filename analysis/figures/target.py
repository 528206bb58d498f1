"""Training to a result: the metric against seconds, samples and steps, and what a target costs at each batch size.

Every seed is a line of its own: where trainings stop at the target, a mean over those that still run would be biased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.figures import marks, style
from analysis.figures.marks import EndLabel
from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.trained import METRICS
from analysis.tables import notes
from analysis.text.file_names import file_name
from analysis.text.number_formats import number
from analysis.to_target import table
from scaling_study.targets import METRICS as DIRECTIONS
from scaling_study.targets import Target

DODGE = 1.04
AXES = (("seconds", "seconds of training"), ("samples", "samples"), ("steps", "steps"))


def draw(results: Results) -> dict[str, Figure]:
    """`target-<model>` of what was trained; `target-batch-<model>` where more than one batch size reached a target."""
    rows = table(results)
    figures: dict[str, Figure] = {}
    for model, ours in rows.groupby("model", sort=False):
        figures[f"target-{file_name(str(model))}"] = _curves(results, str(model), ours)
        reached = ours[ours.samples_to_target.notna()]
        if reached.global_batch.nunique() > 1:
            figures[f"target-batch-{file_name(str(model))}"] = _batches(results, str(model), reached)
    return figures


def _curves(results: Results, model: str, rows: pd.DataFrame) -> Figure:
    evaluations = results.details.evaluations
    evaluations = evaluations[evaluations.configuration.isin(rows.configuration)]
    metric = _metric(rows, evaluations)
    names = {row["configuration"]: f"{row['series']}, batch {row['global_batch']}" for row in rows.to_dict("records")}
    colours = dict(zip(names, style.colours(len(names)), strict=True))
    ticks = [number(value) for value in evaluations[metric].dropna()]
    layout = style.Layout(
        left=style.left_of(ticks or ["0.00"]), gutters=(0.15, 0.15, marks.gutter(names.values())), above=0.12
    )
    footnote = [
        f"Each line: one seed, {metric} on {'validation data' if metric != 'train_loss' else 'the samples trained on'} "
        "at its evaluations. Seconds are of training steps alone.",
        *([f"Dashed: the target, {', '.join(sorted(set(rows.target[rows.target != ''])))}."] if _targets(rows) else []),
        f"{notes.source(results)}.",
    ]
    sheet = style.sheet(1, 3, layout, f"{model}, trained to a result: {results.study.name}", footnote)
    for index, (key, title) in enumerate(AXES):
        axis, _ = sheet.at(index)
        labels: list[EndLabel] = []
        for name, ours in evaluations.groupby("configuration", sort=False):
            for _, seed in ours.groupby("repeat"):
                axis.plot(seed[key], seed[metric], color=colours[name], linewidth=1.0, alpha=0.7, marker=".", ms=3)
            last = ours.sort_values(key).iloc[-1]
            labels.append(EndLabel(float(last[key]), float(last[metric]), names[str(name)], colours[name]))
        for target in _targets(rows):
            axis.axhline(target.value, color=style.DARK, linestyle="--", linewidth=0.9)
        axis.set_xlabel(title)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        if index == len(AXES) - 1:
            marks.end_labels(axis, labels, layout.panel_height)
    style.name_y(sheet.at(0)[0], metric.replace("_", " "), layout)
    return sheet.figure


def _batches(results: Results, model: str, rows: pd.DataFrame) -> Figure:
    """Samples and steps to the target against the global batch, both logarithmic (Shallue et al., arXiv 1811.03600)."""
    names = list(dict.fromkeys(rows.series))
    colours = dict(zip(names, style.colours(len(names)), strict=True))
    layout = style.Layout(left=style.left_of(["100 k"]), gutters=(0.3, marks.gutter(names)))
    footnote = [
        "Geometric means over the seeds; bars: 95 % interval (log-normal; who never reached it counts as larger).",
        "Dotted: as many samples, or as many steps fewer, as perfect scaling from the smallest batch would need.",
        f"{notes.source(results)}.",
    ]
    targets = ", ".join(sorted(set(rows.target)))
    sheet = style.sheet(1, 2, layout, f"{model} to {targets}, by global batch: {results.study.name}", footnote)
    for index, unit in enumerate(("samples", "steps")):
        axis, _ = sheet.at(index)
        labels = [
            _line(axis, rows[rows.series == name], unit, name, colours[name], DODGE ** (place - (len(names) - 1) / 2))
            for place, name in enumerate(names)
        ]
        first = rows.sort_values("global_batch").iloc[0]
        ends = [float(rows.global_batch.min()), float(rows.global_batch.max())]
        start = float(first[f"{unit}_to_target"])
        perfect = [start, start if unit == "samples" else start * ends[0] / ends[1]]
        axis.plot(ends, perfect, color=style.GREY, linestyle=":", linewidth=1.0, zorder=1)
        _logarithmic(axis, sorted(set(rows.global_batch)))
        axis.set_xlabel("global batch")
        axis.set_title(f"{unit} to {targets}", loc="left")
        if index == 1:
            marks.end_labels(axis, labels, layout.panel_height)
    style.name_y(sheet.at(0)[0], "to the target", layout)
    return sheet.figure


def _line(axis: Axes, rows: pd.DataFrame, unit: str, name: str, colour: str, aside: float) -> EndLabel:
    """`aside`: what the batch is multiplied by where it is drawn, so that no interval hides another."""
    ours = rows.sort_values("global_batch")
    at = ours.global_batch * aside
    y = ours[f"{unit}_to_target"].to_numpy(float)
    for x, mean, low, high in zip(at, y, ours[f"{unit}_to_target_low"], ours[f"{unit}_to_target_high"], strict=True):
        axis.plot([x, x], [low if known(low) else mean, high if known(high) else mean], color=colour, linewidth=1.2)
    axis.plot(at, y, color=colour, marker="o", markersize=4, linewidth=1.2)
    return EndLabel(float(at.iloc[-1]), float(y[-1]), name, colour)


def _logarithmic(axis: Axes, batches: Sequence[int]) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(list(batches), [str(batch) for batch in batches])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _metric(rows: pd.DataFrame, evaluations: pd.DataFrame) -> str:
    """That of the target, or the first that was evaluated."""
    targets = _targets(rows)
    there = [name for name in (*METRICS, "train_loss") if evaluations[name].notna().any()]
    return targets[0].metric if targets else there[0]


def _targets(rows: pd.DataFrame) -> list[Target]:
    return [Target.parse(text) for text in sorted(set(rows.target)) if text and text.partition("=")[0] in DIRECTIONS]


def _short(value: Any) -> str:
    """`1.5 k` for 1500."""
    return f"{value / 1000:g} k" if value >= 1000 else f"{value:g}"
