"""Speed-up and efficiency against workers, with the ideal line: a column of panels for each model and allreduce
precision, a line for each batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from analysis import series
from analysis.figures import captions, marks, style
from analysis.figures.captions import RATIO
from analysis.figures.marks import EndLabel, Failure
from analysis.results import Results

MOST_COLUMNS = 3  # side by side
MOST_PANELS = 12  # of each kind; a study that varies more shows its first ones here and all in its tables
LINEAR_UP_TO = 8  # workers; beyond, both axes are logarithmic so that the small counts stay apart
SPEEDUP = ("speedup", "speedup_low", "speedup_high")
EFFICIENCY = ("efficiency", "efficiency_low", "efficiency_high")


@dataclass(frozen=True)
class Column:
    """One column of panels: its title and its configurations, one-worker ones included."""

    title: str
    rows: pd.DataFrame

    @property
    def missing(self) -> pd.DataFrame:
        """What has no speed-up, with why in `status`: not measured, oversubscribed, or no baseline that is ok."""
        why = self.rows.status.where(self.rows.status != "ok", "no baseline")
        why = why.mask((self.rows.status == "ok") & self.rows.oversubscribed, "oversubscribed")
        return self.rows.assign(status=why)[self.rows.speedup.isna()]


def draw(results: Results, model: str) -> Figure | None:
    """The figure for one model, or None where the study claims no speed-up of it."""
    data = results.configurations[results.configurations.model == model]
    found = _columns(data, results.configurations)
    columns = found[:MOST_PANELS]
    if results.study.baseline is None or not columns or data.speedup.isna().all():
        return None
    batches = sorted(int(batch) for batch in data.batch.unique())
    colour = dict(zip(batches, style.shades(len(batches)), strict=True))
    workers = sorted({int(w) for column in columns for w in column.rows.workers})
    logarithmic = workers[-1] > LINEAR_UP_TO
    failed = [_failures(column, colour, logarithmic) for column in columns]
    names = ["ideal", *(f"batch {batch}" for batch in batches)]
    across = min(len(columns), MOST_COLUMNS)
    layout = style.Layout(
        panel_width=2.1, panel_height=max(1.9, (len(names) + 1) * marks.GAP), below=0.46,
        gutters=tuple(
            marks.gutter([*names, *(f.text for fs in failed[place::across] for f in marks.merged(fs))])
            for place in range(across)
        ),
        strip=marks.strip_height(failed),
    )  # fmt: skip
    which = results.study.batch_key.replace("_", " ")
    what = f"Speed-up over {results.study.baseline_text} at the same {which}; efficiency = speed-up / workers."
    if len(found) > len(columns):
        what += f" The first {len(columns)} of {len(found)} combinations; tables/ has all."
    title = f"Speed-up and efficiency of {model}: {results.study.name}"
    deep = -(-len(columns) // across)
    sheet = style.sheet(2 * deep, across, layout, title, captions.footnote(results, what, RATIO, "Welch"))
    for index, column in enumerate(columns):
        for part, names_of in enumerate((SPEEDUP, EFFICIENCY)):  # efficiency under its speed-up
            axis, strip = sheet.at((2 * (index // across) + part) * across + index % across)
            axis.set_title(column.title, loc="left", weight="bold")
            style.name_y(axis, "efficiency" if part else f"speed-up over {results.study.baseline_text}", layout)
            _panel(axis, column.rows, names_of, colour, workers, layout, _top(data, names_of, workers))
            marks.strip(axis, strip, failed[index], "workers")
    for index in range(len(columns), deep * across):
        for part in range(2):
            style.remove(sheet, (2 * (index // across) + part) * across + index % across)
    return sheet.figure


def _columns(data: pd.DataFrame, everything: pd.DataFrame) -> list[Column]:
    """A column for each series without its worker count; one worker reduces nothing and belongs to every precision."""
    names = [name for name in series.keys(everything) if name != "workers"]
    scaled = data[data.workers > 1]
    columns: dict[str, Column] = {}
    for row in scaled.sort_values("series_order").to_dict("records"):
        others = [name for name in names if name != "allreduce"]
        alike = pd.Series(True, index=data.index)
        for name in others:
            alike &= data[name].isna() if pd.isna(row[name]) else (data[name] == row[name]).fillna(False)
        rows = data[alike & ((data.allreduce == row["allreduce"]) | (data.workers == 1))]
        words = [str(row["framework"]), f"{row['allreduce']} allreduce"]
        words += [f"{name} {row[name]}" for name in others if name != "framework" and not pd.isna(row[name])]
        title = ", ".join(words)
        columns.setdefault(title, Column(title, rows))
    return list(columns.values())


def _top(data: pd.DataFrame, names: tuple[str, str, str], workers: list[int]) -> float:
    """Upper end of the y axis, the same in every panel of a row: room for the data and for the ideal line."""
    ideal = float(max(workers)) if names is SPEEDUP else 1.0
    highest = np.nanmax([ideal, data[names[0]].max(), min(data[names[2]].max(), 2 * data[names[0]].max())])
    return float(highest) * 1.08


def _panel(
    axis: Axes, rows: pd.DataFrame, names: tuple[str, str, str], colour: dict[int, str], workers: list[int],
    layout: style.Layout, top: float,
) -> None:  # fmt: skip
    logarithmic = workers[-1] > LINEAR_UP_TO
    place = np.log2 if logarithmic else np.asarray
    at = [float(place(count)) for count in workers]
    span = max(at[-1] - at[0], 1.0)
    ideal = workers if names is SPEEDUP else [1.0] * len(workers)
    labels = [EndLabel(at[-1], float(ideal[-1]), "ideal", style.GREY)]
    axis.plot(at, ideal, color=style.GREY, linestyle="--", linewidth=1.0, zorder=2)
    for index, (batch, shade) in enumerate(colour.items()):
        good = rows[(rows.batch == batch) & rows[names[0]].notna()].sort_values("workers")
        if good.empty:
            continue
        dodge = (index - (len(colour) - 1) / 2) * min(0.03, 0.16 / len(colour)) * span
        # The baseline is 1 by definition and has no bar: nothing there needs to be told apart.
        x = place(good.workers.to_numpy(dtype=float)) + dodge * (good.baseline != good.configuration).to_numpy(
            dtype=float
        )
        marks.interval_line(axis, x, good, names, shade, style.MARKERS[index % len(style.MARKERS)])
        if len(good) > 1 or len(workers) == 1:  # a baseline alone has no end: what failed is named in the strip
            labels.append(EndLabel(float(x[-1]), float(good[names[0]].iloc[-1]), f"batch {batch}", shade))
    axis.set_xlim(at[0] - 0.14 * span, at[-1] + 0.14 * span)
    if logarithmic and names is SPEEDUP:
        axis.set_yscale("log", base=2)
        axis.set_ylim(min(0.5, float(np.nanmin(rows[names[0]].to_numpy(dtype=float))) / 1.2), top * 1.1)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_ylim(0, top)
        axis.yaxis.set_major_locator(MaxNLocator(5))
    if names is EFFICIENCY:
        axis.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0, symbol=" %"))
    axis.grid(False, axis="x")
    marks.ticks(axis, at, [str(count) for count in workers], layout.panel_width)
    marks.end_labels(axis, labels, layout.panel_height)


def _failures(column: Column, colour: dict[int, str], logarithmic: bool) -> list[Failure]:
    made = []
    bad = column.missing.sort_values(["batch", "workers"])
    for batch, shade in colour.items():
        group = bad[bad.batch == batch]
        if len(group):
            where = [(status, str(w)) for status, w in zip(group.status, group.workers, strict=True)]
            xs = tuple(math.log2(w) if logarithmic else float(w) for w in group.workers)
            made.append(Failure(xs, marks.failure_text(f"batch {batch}", where), shade))
    return made
