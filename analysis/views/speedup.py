"""Speed-up and efficiency: by batch size, and against workers as a figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from analysis.frames import configurations
from analysis.frames.configurations import is_pipeline, known
from analysis.frames.results import ALLREDUCE_ORDER, Results, on_wire, once, words
from analysis.frames.rows import ConfigurationRow, as_rows
from analysis.show import dots, notes, style
from analysis.show.layout import Table
from analysis.show.style import DASHES, RATIO, EndLabel, Failure, SeriesLook
from analysis.views.throughput import published_layout
from analysis.views.view import Drawing, Gap, ModelTable, View

# The table in the published layout, `1.62 [1.58, 1.66], 81 %`: speed-up with its 95 % interval, and efficiency.


@once
def listing(results: Results, model: str) -> Table | None:
    """The table of one model; None where the study declares no baseline, or none was run for any of these."""
    if results.study.baseline is None or _without_baseline(results, model):
        return None
    title = f"Speed-up of {model} over {results.study.baseline_text}, and efficiency"
    lines, legend = notes.under_speedup(results, model), notes.legend_of_speedup(results)
    return published_layout(results, model, title, "speed-up, efficiency", _speedup_text, lines, legend)


def _without_baseline(results: Results, model: str) -> list[str]:
    """The reasons, where all that was measured of a model beside baselines has none to be held against; else none."""
    others = [row for row in results.rows_of(model) if row["n"] and row["baseline"] != row["configuration"]]
    if any(known(row["baseline"]) or row["not_comparable"] for row in others):
        return []
    return list(dict.fromkeys(str(row["speedup_reason"]) for row in others))


def _why_none(results: Results) -> str:
    if results.study.baseline is None:
        return "the study declares no baseline"
    return "; ".join(dict.fromkeys(why for model in results.models for why in _without_baseline(results, model)))


def table(results: Results, model: str) -> pd.DataFrame:
    """Speed-ups and efficiencies of one model's configurations, with their bounds."""
    ours = results.frame_of(model)
    columns = [column for column in ours.columns if column.startswith(("speedup", "efficiency"))]
    return ours[["configuration", "series", "batch", *columns]]


def _speedup_text(row: ConfigurationRow) -> str:
    if row["status"] != "ok":
        return configurations.word(row)
    if row["not_comparable"]:
        return "not comparable"
    if not known(row["speedup"]):
        return "oversubscribed" if row["oversubscribed"] else "no baseline"
    if row["baseline"] == row["configuration"]:
        return "1 (baseline)"
    low, high = row["speedup_low"], row["speedup_high"]
    interval = f" [{low:.2f}, {high:.2f}]" if known(low) else f" (n = {row['n']})"
    share = f", {100 * row['efficiency']:.0f} %" if known(row["efficiency"]) else "; no efficiency at unlike work"
    return f"{row['speedup']:.2f}{interval}{share}"


# Which lines share a panel of the speed-up figure: a framework's, by allreduce precision and batch size.


@dataclass(frozen=True)
class SpeedupLine:
    """One line of a panel: its configurations, one-worker ones included, in the order of workers."""

    name: str
    look: SeriesLook
    rows: pd.DataFrame

    @property
    def missing(self) -> pd.DataFrame:
        """Rows without a speed-up; `status` says why: not measured, oversubscribed, or no baseline that is ok."""
        if not self.rows.speedup.isna().any():
            return self.rows[:0]
        why = configurations.words(self.rows).where(self.rows.status != "ok", "no baseline")
        why = why.mask((self.rows.status == "ok") & self.rows.oversubscribed, "oversubscribed")
        return self.rows.assign(status=why)[self.rows.speedup.isna()]


@dataclass(frozen=True)
class WorkersColumn:
    """A panel of speed-ups and one of efficiencies under it: a framework, with the precisions that share them."""

    title: str
    rows: pd.DataFrame
    precisions: tuple[str, ...]

    def lines(self, batches: list[int]) -> Iterator[SpeedupLine]:
        """One for each precision and batch size; one worker reduces nothing and belongs to every precision."""
        several = len(self.precisions) > 1
        shades = dict(zip(batches, style.shades(len(batches)), strict=True))
        for index, (batch, shade) in enumerate(shades.items()):
            for precision in self.precisions:
                fits = (self.rows.allreduce == precision) | (self.rows.workers == 1)
                rows = self.rows[fits & (self.rows.batch == batch)].sort_values("workers")
                dashes = DASHES.get(precision, "-") if several else "-"
                look = SeriesLook(shade, style.MARKERS[index % len(style.MARKERS)], dashes)
                if len(rows):
                    yield SpeedupLine(f"batch {batch}" + (f", {precision}" if several else ""), look, rows)


def arrange(data: pd.DataFrame, names: Sequence[str], together: bool) -> list[WorkersColumn]:
    """A column for each series without its worker count; with `together`, without its allreduce precision too.

    `names`: the keys that tell series apart.
    """
    others = [name for name in names if name not in ("workers", "allreduce")]
    columns: dict[str, WorkersColumn] = {}
    apart = [*others] if together else [*others, "allreduce"]
    for row in as_rows(data[data.workers > 1].sort_values("series_order").drop_duplicates(apart)):
        alike = pd.Series(True, index=data.index)
        for name in others:
            alike &= data[name].isna() if pd.isna(row[name]) else (data[name] == row[name]).fillna(False)
        rows = data[alike]
        wire = [p for p in ALLREDUCE_ORDER if ((rows.allreduce == p) & (rows.workers > 1)).any()]
        precisions = tuple(wire) if together else (str(row["allreduce"]),)
        rows = rows[rows.allreduce.isin(precisions) | (rows.workers == 1)]
        wired = [f"{on_wire(row)} gradients"] if len(precisions) == 1 and on_wire(row) else []
        rest = words(row, (name for name in others if name != "framework"))
        title = ", ".join([str(row["framework"]), *wired, *rest])
        columns.setdefault(title, WorkersColumn(title, rows, precisions))
    return list(columns.values())


# With one number of workers beside the baseline's: a row for each configuration, its speed-up as a dot. With more:
# speed-up and efficiency against workers, with the ideal line: two panels side by side for each framework and allreduce
# precision, a line for each batch size; where those would be many, the precisions of a framework share the panels.

MANY = 6  # pairs of panels beyond which precisions share them
MOST_PANELS = 16  # pairs; a study that varies more shows its first ones here and all in its tables
MOST_IN_ALL = 48  # of all models together, but one for each
LINEAR_UP_TO = 8  # workers; beyond, both axes are logarithmic so that the small counts stay apart
SPEEDUP = ("speedup", "speedup_low", "speedup_high")
EFFICIENCY = ("efficiency", "efficiency_low", "efficiency_high")
SEVERAL_WORKERS, ONE_WORKER = style.style_colours(2)
ASIDE = "Not shown: what is not comparable."


def draw(results: Results, model: str) -> Figure | None:
    """The figure for one model, or None where the study claims no speed-up of several workers."""
    everything = results.frame_of(model)
    data = everything[everything.not_comparable.fillna("") == ""]
    compared = data[(data.baseline.fillna("") != data.configuration) & data.speedup.notna()]
    if results.study.baseline is None or not (compared.workers > 1).any():
        return None
    which = results.study.batch_key.replace("_", " ")
    if which != "global batch" and any(is_pipeline(row) for row in results.rows_of(model) if not row["not_comparable"]):
        which += " (pipelines: global batch)"
    what = f"Speed-up over {results.study.baseline_text} at the same {which}; efficiency: over the ratio of workers."
    title = f"Speed-up and efficiency of {model}: {results.study.name}"
    intervals = notes.interval_of_speedups(results)
    footnote = partial(style.footnote, results, everything, points=RATIO, method=intervals, drawn=ASIDE)
    if data.workers[data.speedup.notna()].nunique() <= 2:
        panel, left_out = _rows(results, data)
        return dots.figure(title, [panel], footnote(what=f"{what} Dashed: linear speed-up.{left_out}"))
    panels, left_out = _columns(results, data)
    most = max(len(panel.labels) for panel in panels)
    height = max(1.9, (most + 1) * style.GAP)
    what += left_out
    return style.figure_of(title, panels, footnote(what=what), 2, panel_width=1.9, panel_height=height, below=0.46)


def _alone(results: Results, data: pd.DataFrame) -> int:
    """Workers of the baseline, from which the ideal line starts."""
    return int(results.among(data.baseline.dropna()).workers.min())


def _rows(results: Results, data: pd.DataFrame) -> tuple[dots.DotPanel, str]:
    """Every configuration but the baselines, the highest speed-up first; and how many are left out, in words."""
    every = sorted((row for row in as_rows(data) if row["baseline"] != row["configuration"]), key=_place)
    shown, alone = every[: dots.MOST_ROWS], _alone(results, data)
    names, shared = style.told_apart(configurations.told_by_batch(shown))
    made = [_dot(name, row) for name, row in zip(names, shown, strict=True)]
    ideal = {int(row["workers"]) / alone: "--" for row in shown if known(row["speedup"])} | {1.0: "-"}
    further = notes.holding(
        (any(dot.colour == ONE_WORKER for dot in made), " Orange: one worker."),
        (len(every) > len(shown), f" The first {len(shown)} of {len(every)} rows; tables/ has all."),
    )
    x, limits = f"speed-up over {results.study.baseline_text}", dots.from_zero(made, *ideal)
    return dots.DotPanel(", ".join(shared), x, made, limits, ideal), "".join(further)


def _place(row: ConfigurationRow) -> float:
    return -float(row["speedup"]) if known(row["speedup"]) else math.inf


def _dot(name: str, row: ConfigurationRow) -> dots.Dot:
    if not known(row["speedup"]):
        cross = dots.HOLLOW_CROSS if configurations.implied(row) else dots.CROSS
        return dots.Dot(name, _speedup_text(row), None, marker=cross)
    ends = dots.interval(row["speedup_low"], row["speedup_high"])
    colour = SEVERAL_WORKERS if int(row["workers"]) > 1 else ONE_WORKER
    return dots.Dot(name, _speedup_text(row), float(row["speedup"]), ends, colour)


def _columns(results: Results, data: pd.DataFrame) -> tuple[list[style.Panel], str]:
    """Two panels for each framework and precision; and how many are left out, in words."""
    every = arrange(data, results.series_keys, together=False)
    if len(every) > MANY:
        every = arrange(data, results.series_keys, together=True)
    columns = every[: min(MOST_PANELS, max(4, MOST_IN_ALL // len(results.models)))]
    batches = sorted(int(batch) for batch in data.batch.unique())
    workers = sorted({int(w) for column in columns for w in column.rows.workers})
    alone = _alone(results, data)

    def panel(column: WorkersColumn, names: tuple[str, str, str]) -> style.Panel:
        of, first = list(column.lines(batches)), names is SPEEDUP
        ideal = [count / alone for count in workers] if first else [1.0] * len(workers)
        return style.Panel(
            column.title if first else "",
            partial(_panel, lines=of, names=names, workers=workers, ideal=ideal, top=_top(data, names, ideal[-1])),
            x="workers",
            y=f"speed-up over {results.study.baseline_text}" if first else "efficiency",
            labels=["ideal", *(line.name for line in of)],
            failures=() if first else _failures(of, workers[-1] > LINEAR_UP_TO),
        )

    left_out = f" The first {len(columns)} of {len(every)} combinations; tables/ has all."
    panels = [panel(column, names) for column in columns for names in (SPEEDUP, EFFICIENCY)]
    return panels, left_out if len(every) > len(columns) else ""


def _top(data: pd.DataFrame, names: tuple[str, str, str], ideal: float) -> float:
    """Upper end of the y axis, the same in every panel of a row: room for the data and for the ideal line."""
    highest = np.nanmax([ideal, data[names[0]].max(), min(data[names[2]].max(), 2 * data[names[0]].max())])
    return float(highest) * 1.08


def _panel(
    axis: Axes,
    layout: style.Layout,
    lines: list[SpeedupLine],
    names: tuple[str, str, str],
    workers: list[int],
    ideal: list[float],
    top: float,
) -> None:
    logarithmic = workers[-1] > LINEAR_UP_TO
    place = np.log2 if logarithmic else np.asarray
    at = [float(place(count)) for count in workers]
    span = max(at[-1] - at[0], 1.0)
    labels = [EndLabel(at[-1], ideal[-1], "ideal", style.GREY)]
    axis.plot(at, ideal, color=style.GREY, linestyle="--", linewidth=1.0, zorder=2)
    dodges = [(i - (len(lines) - 1) / 2) * min(0.03, 0.16 / len(lines)) * span for i in range(len(lines))]
    for line, dodge in zip(lines, dodges, strict=True):
        good = line.rows[line.rows[names[0]].notna()]
        if good.empty:
            continue
        # Lines of one batch size are of one colour, and share their point at one worker, which reduces nothing.
        shared = [other for other, of in zip(dodges, lines, strict=True) if of.look.colour == line.look.colour]
        away = np.where(good.workers == 1, np.mean(shared), dodge)
        # The baseline is 1 by definition and has no bar: nothing there needs to be told apart.
        away = away * (good.baseline != good.configuration).to_numpy(dtype=float)
        x = place(good.workers.to_numpy(dtype=float)) + away
        style.interval_line(axis, x, good, names, line.look)
        if len(good) > 1 or len(workers) == 1:  # a baseline alone has no end: what failed is named in the strip
            labels.append(EndLabel(float(x[-1]), float(good[names[0]].iloc[-1]), line.name, line.look.colour))
    axis.set_xlim(at[0] - 0.14 * span, at[-1] + 0.14 * span)
    if logarithmic and names is SPEEDUP:
        least = min(
            (float(line.rows[names[0]].min()) for line in lines if line.rows[names[0]].notna().any()), default=1
        )
        axis.set_yscale("log", base=2)
        axis.set_ylim(min(0.5, least / 1.2), top * 1.1)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_ylim(0, top)
        axis.yaxis.set_major_locator(MaxNLocator(5))
    if names is EFFICIENCY:
        axis.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0, symbol=" %"))
    axis.grid(False, axis="x")
    style.ticks(axis, at, [str(count) for count in workers], layout.panel_width)
    style.end_labels(axis, labels, layout.panel_height)


def _failures(lines: list[SpeedupLine], logarithmic: bool) -> list[Failure]:
    place = math.log2 if logarithmic else float
    return [
        style.failure(
            line.name,
            line.look.colour,
            [(status, place(count), count) for status, count in zip(bad.status, bad.workers, strict=True)],
        )
        for line in lines
        if len(bad := line.missing)
    ]


VIEW = View(
    "How much faster are several workers than one?",
    (
        ModelTable(
            "speedup",
            listing,
            table,
            "speed-up",
            Gap("No speed-ups", _why_none),
            files=("md",),
            bars="speedup",
        ),
    ),
    figures=(
        Drawing.of_models(
            "speedup",
            draw,
            gap=Gap("No speed-up figure", "no configuration of more than one worker has a speed-up"),
        ),
    ),
)
