"""Predicted efficiency against workers, and under it what of a step is exposed communication: a figure for each model,
a column of panels for each way of sharing gradients, a line for each algorithm; what was measured as open diamonds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from analysis.figures import marks, style
from analysis.figures.marks import EndLabel
from analysis.frames.results import Results
from analysis.prediction.against import Checked
from analysis.prediction.forecast import Forecast
from analysis.prediction.predict import Bounds, Prediction
from analysis.tables import notes
from analysis.tables.prediction import networks
from analysis.text.file_names import file_name

ACROSS, MOST_COLUMNS = 3, 9  # panels of a row; of a model: tables/prediction.md has all
EFFICIENCY, EXPOSED = "efficiency", "exposed share of a step"


@dataclass(frozen=True)
class Column:
    """Two panels: everything that was predicted of one way of sharing gradients at one precision on the wire."""

    title: str
    predictions: tuple[Prediction, ...]


def draw(forecast: Forecast, results: Results) -> dict[str, Figure]:
    """prediction-<model> -> its figure."""
    with style.applied():
        return {
            f"prediction-{file_name(model)}": _figure(
                model, [p for p in forecast.predictions if p.target.row["model"] == model], forecast.checked, results
            )
            for model in dict.fromkeys(str(p.target.row["model"]) for p in forecast.predictions)
        }


def _figure(model: str, predictions: Sequence[Prediction], checked: Sequence[Checked], results: Results) -> Figure:
    every = _columns(predictions)
    columns = every[:MOST_COLUMNS]
    across = 2 if len(columns) == 4 else min(len(columns), ACROSS)
    deep = -(-len(columns) // across)
    names = [prediction.algorithm for prediction in predictions]
    algorithms = list(dict.fromkeys(names))
    colours = dict(zip(algorithms, style.colours(len(algorithms)), strict=True))
    words = [name.replace("_", " and ") for name in algorithms]
    layout = style.Layout(
        panel_width=2.3, panel_height=1.9, left=0.78, below=0.46,
        gutters=tuple(
            marks.gutter(words, (column.title for column in columns[place::across]), 2.3) for place in range(across)
        ),
    )  # fmt: skip
    what = "Weak scaling. Exposed: what communication adds to a step."
    if any(prediction.efficiency.low is not None for prediction in predictions):
        what += " Bars: 95 %, from the repeats of one worker and the fit of the network; not the model's own error."
    if checked:
        what += " Diamonds: measured."
    if len(every) > len(columns):
        what += f" The first {len(columns)} of {len(every)} combinations; tables/ has all."
    foot = [what, *networks(predictions), f"{notes.source(results)}."]
    title = f"Predicted efficiency of {model}: {results.study.name}"
    sheet = style.sheet(2 * deep, across, layout, title, foot)
    for index, column in enumerate(columns):
        for part, name in enumerate((EFFICIENCY, EXPOSED)):
            axis, _ = sheet.at((2 * (index // across) + part) * across + index % across)
            axis.set_title(column.title, loc="left", weight="bold")
            style.name_y(axis, name, layout)
            _panel(axis, column, part == 0, colours, checked, layout)
    for index in range(len(columns), deep * across):
        for part in range(2):
            style.remove(sheet, (2 * (index // across) + part) * across + index % across)
    return sheet.figure


def _columns(predictions: Sequence[Prediction]) -> list[Column]:
    columns: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        columns.setdefault(f"{prediction.target.label}, {prediction.allreduce}", []).append(prediction)
    return [Column(title, tuple(ours)) for title, ours in columns.items()]


def _panel(
    axis: Axes, column: Column, efficiency: bool, colours: dict[str, str], checked: Sequence[Checked],
    layout: style.Layout,
) -> None:  # fmt: skip
    workers = sorted({prediction.workers for prediction in column.predictions})
    at = {count: float(np.log2(count)) for count in workers}
    span = max(at[workers[-1]] - at[workers[0]], 1.0)
    labels = []
    for index, (name, colour) in enumerate(colours.items()):
        ours = [prediction for prediction in column.predictions if prediction.algorithm == name]
        if not ours:
            continue
        values = [forecast.efficiency if efficiency else _share(forecast) for forecast in ours]
        shift = (index - (len(colours) - 1) / 2) * 0.015 * span
        x, mean = [at[forecast.workers] + shift for forecast in ours], np.array([value.mean for value in values])
        low, high = (np.array([v if v is not None else m for v, m in zip(side, mean, strict=True)])
                     for side in ([v.low for v in values], [v.high for v in values]))  # fmt: skip
        axis.errorbar(
            x, mean, yerr=np.clip(np.vstack([mean - low, high - mean]), 0, None), color=colour,
            marker=style.MARKERS[index], capsize=2.5, elinewidth=1.0, capthick=1.0, markeredgecolor="white",
            markeredgewidth=0.5, zorder=3,
        )  # fmt: skip
        labels.append(EndLabel(x[-1], float(mean[-1]), name.replace("_", " and "), colour))
    if efficiency:
        _measured(axis, column, at, checked)
    axis.set_xlim(at[workers[0]] - 0.12 * span, at[workers[-1]] + 0.12 * span)
    axis.set_ylim(0, 1.08 if efficiency else None)
    axis.yaxis.set_major_locator(MaxNLocator(5))
    axis.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=None, symbol=" %"))
    axis.set_xlabel("workers")
    axis.grid(False, axis="x")
    marks.ticks(axis, list(at.values()), [f"{count:,}" for count in workers], layout.panel_width)
    marks.end_labels(axis, labels, layout.panel_height)


def _share(prediction: Prediction) -> Bounds:
    """Exposed seconds as a share of the step."""
    exposed, computed = prediction.exposed_seconds, prediction.step_seconds - prediction.exposed_seconds.mean
    low, high = (None if side is None else side / (computed + side) for side in (exposed.low, exposed.high))
    return Bounds(exposed.mean / prediction.step_seconds, low, high)


def _measured(axis: Axes, column: Column, at: dict[int, float], checked: Sequence[Checked]) -> None:
    """Each measurement once, whatever algorithms were predicted for it."""
    ours = {id(prediction) for prediction in column.predictions}
    points = {
        c.prediction.workers: c.samples_per_second
        / (c.prediction.workers * c.prediction.target.alone.samples_per_second)
        for c in checked
        if id(c.prediction) in ours and c.as_shown
    }
    axis.plot(
        [at[count] for count in points], list(points.values()), linestyle="", marker="D", markerfacecolor="none",
        markeredgecolor=style.DARK, markeredgewidth=1.2, markersize=6.5, zorder=4,
    )  # fmt: skip
