"""Throughput by batch size: the table in the published layout, the figure, and every framework side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis.frames import configurations
from analysis.frames.configurations import known, usual_batch, values
from analysis.frames.results import Results, once, unit
from analysis.frames.rows import ConfigurationRow, as_rows
from analysis.show import dots, notes, style
from analysis.show.layout import ALIKE, BEST, FAILED, Cell, Listing, Table
from analysis.show.style import MEAN, EndLabel, Failure, SeriesLook
from analysis.statistics import ranking
from analysis.text import number, with_interval
from analysis.views.view import Drawing, ModelTable, StudyTable, View
from scaling_study.frameworks import POWERSGD

# Tables in the published layout: one a model, a row for each batch size, a column for workers x allreduce precision.

SHOWN = {ranking.FASTEST: BEST, ranking.HIGHEST: ALIKE, ranking.CLOSE: ALIKE}


@once
def listing(results: Results, model: str) -> Table:
    """`712 ± 8` samples/s; the half-width is that of the 95 % interval between repeats. Beside it tokens/s, of text."""
    samples = unit(results.frame_of(model))
    title, lines = f"Throughput of {model} in {samples}/s", notes.under_throughput(results, model)
    return published_layout(results, model, title, f"{samples}/s", throughput_text, lines, notes.legend(results))


@once
def table(results: Results, model: str) -> pd.DataFrame:
    """The numbers of listing(): one row a batch size; a mean (or status), a half-width, and for text the tokens/s,
    for each series."""
    rows, ours = results.rows_of(model), results.frame_of(model)
    means = [round(row["samples_per_second"], 3) if row["status"] == "ok" else configurations.word(row) for row in rows]
    frame = ours[["series", "series_order", "batch"]].assign(
        mean=pd.Series(means, index=ours.index, dtype=object),
        half=((ours.interval_high - ours.interval_low) / 2).round(3).astype(object),
        tokens=ours.tokens_per_second.round(1).astype(object),
    )
    shown = {"mean": "", "half": " ±"} | ({"tokens": " tokens/s"} if ours.tokens_per_second.notna().any() else {})
    signs = {row["series"]: configurations.sign(row) for row in rows}
    order = frame.sort_values("series_order").series.unique()
    columns = [(what, series) for series in order for what in shown]
    wide = frame.drop_duplicates(["batch", "series"]).pivot(index="batch", columns="series", values=list(shown))[
        columns
    ]
    wide.columns = pd.Index([f"{series} {signs[series]}".rstrip() + shown[what] for what, series in columns])
    return wide.rename_axis(results.study.batch_key).reset_index()


def published_layout(
    results: Results,
    model: str,
    title: str,
    name: str,
    text: Callable[[ConfigurationRow], str],
    lines: list[str],
    legend: list[str],
) -> Table:
    """A row for each batch size, a column for each series; `text` is what a cell says of a configuration, and `name`
    says what that is."""
    ours = sorted(results.rows_of(model), key=lambda row: (row["batch"], row["series_order"]))
    cells: dict[tuple[int, str], Cell] = {}
    standings = ranking.standings(results)
    for row in ours:
        place = (int(row["batch"]), str(row["series"]))
        standing = standings.get(row["configuration"])
        mark = SHOWN.get(standing.kind if standing else "", "") if row["status"] == "ok" else FAILED
        cell = Cell(text(row), mark, configurations.sign(row))
        # Two configurations that differ only in how they were measured share a cell and are both shown.
        both = cells.get(place)
        cells[place] = Cell(f"{both.text}; {cell.text}", mark.replace(FAILED, ""), cell.sign) if both else cell
    order = sorted({(row["series_order"], str(row["series"])) for row in ours})
    return Table(
        title=f"{title} ({results.heading})",
        row_name="global batch" if results.study.batch_key == "global_batch" else "batch per worker",
        value_name=name,
        rows=tuple(sorted({batch for batch, _ in cells})),
        columns=tuple(series for _, series in order),
        cells=cells,
        best_row=_best_row(results, model),
        notes=tuple(lines),
        legend=tuple(legend),
    )


def _best_row(results: Results, model: str) -> int | None:
    """The batch size of the highest mean; None where one of another batch size may be as fast."""
    ranked = ranking.ranking(results)
    ours = as_rows(ranked[ranked.model == model])
    tied = [row for row in ours[1:] if row["work"] == ours[0]["work"] and row["verdict"] == ranking.ALIKE]
    batches = {int(row["batch"]) for row in (*ours[:1], *tied)}
    return batches.pop() if len(batches) == 1 else None


def throughput_text(row: ConfigurationRow) -> str:
    """`712 ± 8`, or the status."""
    if row["status"] != "ok":
        return configurations.word(row)
    half = _half(row)
    lone = f" (n = {row['n']})" if half is None else ""
    failed = f" ({row['failures']})" if row["failures"] else ""
    tokens = f"; {number(row['tokens_per_second'])} tokens/s" if known(row["tokens_per_second"]) else ""
    return number(row["samples_per_second"], half) + lone + tokens + failed


def verdicts_listing(results: Results) -> Listing | None:
    """Every configuration beside the highest mean of its row: the ratio with its own interval, and the corrected one
    that its verdict is by; None where no row has two."""
    standings, rows = ranking.standings(results), []
    for model in results.models:
        ours = [row for row in results.rows_of(model) if row["configuration"] in standings]
        for row in sorted(ours, key=lambda row: (row["batch"], -row["samples_per_second"])):
            standing = standings[row["configuration"]]
            behind = standing.verdict != ranking.BEST
            own = configurations.over(row, results.by_name[standing.beside]) if behind else None
            rows.append(
                {
                    "configuration": notes.series_and_batch(row, results)[0],
                    "batch": configurations.batch_words(row).removeprefix("global ").removeprefix("batch "),
                    "samples/s": throughput_text(row),
                    "ratio [95 %]": with_interval(own.mean, own.low, own.high, "{:.2f}".format) if own else "",
                    "[among its row]": ranking.corrected(standing.low, standing.high) if behind else "",
                    "verdict": ranking.in_words(standing, results.counted(row["n"])),
                }
            )
    if not rows:
        return None
    lines = [
        "Ratio: of throughputs, to the highest mean of the same model, batch and work, with its own 95 % interval. "
        f"Among its row: corrected for its rivals there and the {len(rows)} configurations of this table. The verdict "
        "follows from that. Fastest: all others tested are slower. Slower: the interval ends below 1. Too close to "
        "call: it holds 1; in brackets how much faster it could be. Probably slower: more than "
        f"{100 * ranking.NEAR:.0f} % behind, and it holds 1, but no such gain.",
    ]
    return notes.study_listing(results, "Beside the highest mean of each row", rows, lines)


# Throughput against batch size: a panel for each model, a line for each worker count and allreduce precision. With one
# or two batch sizes there is no line to see: then a row for each configuration.

FEWEST_SIZES = 3  # of a series, for a line
MOST_PANELS = 24  # a study with more shows its first ones here and all in its tables
MOST_LABELS = 24  # lines in a panel that are named; beyond, only the fastest and the slowest
LOGARITHMIC_FROM = 25  # largest over smallest throughput of a panel


@dataclass(frozen=True)
class ThroughputLines:
    """The configurations of one panel, its title, and what their labels need not say because the title does."""

    title: str
    rows: pd.DataFrame
    said: str = ""

    @property
    def measured(self) -> bool:
        """True where a configuration is ok of which this is the only panel."""
        own = self.rows[self.rows.series.str.startswith(self.said)]
        return bool((own.status == "ok").any())

    def label(self, series: str, look: SeriesLook) -> str:
        return f"{series.removeprefix(self.said)} {look.sign}".rstrip()


def draw(results: Results) -> Figure | None:
    """The figure; with no finished trial, one that says so; None where only the network was probed."""
    if results.nothing_yet:
        return style.empty("Throughput", results.nothing_yet, results)
    every = results.configurations
    if every.empty:
        return None
    if not has_lines(every):
        return _side_by_side(
            f"Throughput: {results.study.name}", results, {str(model): rows for model, rows in every.groupby("model")}
        )
    look = style.series_looks(every)
    planned = _panels(results, many=len(look) > style.MOST_COLOURS)
    measured = [panel for panel in planned if panel.measured]
    arranged = measured or planned
    panels = arranged[:MOST_PANELS]
    most = max(panel.rows.series.nunique() for panel in panels)
    lost = [panel.title for panel in planned if not panel.measured] if measured else []
    left_out = notes.holding(
        (lost, f"Nothing was measured of {'; '.join(lost)} (tables/ has the reasons)."),
        (len(arranged) > len(panels), f"The first {len(panels)} of {len(arranged)} panels; tables/ has all."),
        (most > MOST_LABELS, f"Of {most} lines, the fastest and the slowest are named; tables/ has all."),
    )
    footnote = style.footnote(
        results,
        every,
        " ".join(left_out),
        MEAN,
        style.between(results),
        "dashes show the single repeats",
        "Hollow and grey: not comparable.",
    )
    fastest = (panel.rows.samples_per_second.max() for panel in panels)
    return style.figure_of(
        f"Throughput by batch size: {results.study.name}",
        [
            style.Panel(
                panel.title,
                partial(_panel, panel=panel, look=look, model=every[every.model.isin(panel.rows.model)]),
                x=f"{results.study.batch_key.replace('_', ' ')} (samples)",
                y=f"throughput ({unit(panel.rows)}/s)",
                labels=[panel.label(name, look[name]) for name in panel.rows.series],
                failures=_failures(panel, look),
            )
            for panel in panels
        ],
        footnote,
        left=style.left_of([f"{0 if pd.isna(speed) else speed:,.0f}" for speed in fastest]),
        panel_height=max(2.1, (min(most, MOST_LABELS) + 1) * 1.4 * style.GAP),
    )


def has_lines(rows: pd.DataFrame) -> bool:
    """True where a series has FEWEST_SIZES batch sizes, or a model more configurations than rows could show."""
    sizes = rows.groupby(["model", "series"]).batch.nunique()
    return bool((sizes >= FEWEST_SIZES).any() or (rows.groupby("model").size() > dots.MOST_ROWS).any())


def _panels(results: Results, many: bool) -> list[ThroughputLines]:
    """One panel a model, or, where lines are many, one a model and framework.

    A framework that only ever has one worker is a reference to the others, and shown with each of them.
    """
    data = results.configurations
    every = list(data.sort_values("series_order").framework.unique())
    frameworks, alone = [f for f in every if not style.alone(f)], [f for f in every if style.alone(f)]
    panels = []
    for model, framework in product(results.models, frameworks if many and len(frameworks) > 1 else ()):
        rows = data[(data.model == model) & data.framework.isin([framework, *alone])]
        if (rows.framework == framework).any():
            panels.append(ThroughputLines(f"{model}, {framework}", rows, f"{framework}, "))
    return panels or [ThroughputLines(model, results.frame_of(model)) for model in results.models]


def _panel(
    axis: Axes, layout: style.Layout, panel: ThroughputLines, look: dict[str, SeriesLook], model: pd.DataFrame
) -> None:
    """`model`: all of its configurations, as its panels have one scale."""
    _scale(axis, model)
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
        style.interval_line(axis, x, good, style.SPEEDS, ours)
        for at, row in zip(x, as_rows(good[["n", "repeat_values"]]), strict=True):
            if row["n"] < 3:  # no interval is claimed: show the repeats themselves
                axis.plot([at] * row["n"], values(row), linestyle="", marker="_", color=ours.colour, markersize=7)
        labels.append(EndLabel(float(x[-1]), float(means.iloc[-1]), panel.label(name, ours), ours.colour))
    if not labels:
        axis.text(0.5, 0.5, "nothing measured", ha="center", va="center", transform=axis.transAxes)
        axis.yaxis.set_major_locator(NullLocator())
    axis.grid(False, axis="x")
    style.ticks(axis, [math.log2(batch) for batch in batches], [str(batch) for batch in batches], layout.panel_width)
    if len(labels) > MOST_LABELS:
        labels.sort(key=lambda label: label.y)
        labels = [labels[0], labels[-1]]
    style.end_labels(axis, labels, layout.panel_height)


def _scale(axis: Axes, rows: pd.DataFrame) -> None:
    """From 0, unless that would press the slow ones together; room for every interval up to twice the fastest."""
    least, most = rows.samples_per_second.min(), rows.samples_per_second.max()
    top = 1.0 if pd.isna(most) else min(np.nanmax([most, rows.interval_high.max()]) * 1.06, 2 * most)
    logarithmic = not pd.isna(most) and most / least > LOGARITHMIC_FROM
    style.value_axis(axis, "y", logarithmic, (0.7 * least, 1.15 * top) if logarithmic else (0, top), 6)


def _failures(panel: ThroughputLines, look: dict[str, SeriesLook]) -> list[Failure]:
    bad = panel.rows[panel.rows.status != "ok"].sort_values(["series_order", "batch"])
    bad = bad.assign(word=configurations.words(bad))
    return [
        style.failure(
            panel.label(str(name), look[str(name)]),
            look[str(name)].colour,
            [(word, math.log2(batch), batch) for word, batch in zip(group.word, group.batch, strict=True)],
        )
        for name, group in bad.groupby("series", sort=False)
    ]


# Every configuration side by side: a panel for each model, the fastest on top.

FEWEST = 3  # frameworks of a model, below which the figure would say nothing that the others do not
CODED = {"16-bit": ("bf16", "fp16"), "8-bit": ("int8",), "PowerSGD": tuple(POWERSGD)}  # how gradients travel: squares


def draw_frameworks(results: Results) -> Figure | None:
    """Frameworks at one batch size; None where no model was measured with several, and where the figure of throughput
    has a row for each configuration anyway."""
    data = results.configurations
    if not has_lines(data):
        return None
    measured = data[data.n > 0].groupby("model").framework.nunique()
    panels = {model: _usual_batch(data[data.model == model]) for model in measured[measured >= FEWEST].index}
    return _side_by_side(f"Throughput by framework: {results.study.name}", results, panels) if panels else None


def _usual_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the batch size that most of those measured have, the largest of several."""
    usual: pd.DataFrame = rows[rows.batch == usual_batch(as_rows(rows.loc[rows.n > 0, ["batch"]]))]
    return usual


def _side_by_side(title: str, results: Results, of_models: Mapping[str, pd.DataFrame]) -> Figure:
    """A row for each configuration: those that may be compared, then the others, then those that were not measured."""
    panels = {model: of_models[model] for model in results.models if model in of_models}
    shown = pd.concat(list(panels.values()))
    workers = sorted(int(count) for count in shown.workers.unique())
    colour = dict(zip(workers, style.style_colours(len(workers)), strict=True))
    what = ["Colour: number of workers."] * (len(workers) > 1)
    if coded := [kind for kind, wires in CODED.items() if shown.allreduce.isin(wires).any()]:
        what.append(f"Squares: {' or '.join(coded)} gradients.")
    if (most := max(map(len, panels.values()))) > dots.MOST_ROWS:
        what.append(f"The first {dots.MOST_ROWS} of up to {most} rows of a model; tables/ has all.")
    hollow = "Hollow and grey: not comparable."
    return dots.figure(
        title,
        [_rows(model, rows, colour) for model, rows in panels.items()],
        style.footnote(results, shown, " ".join(what), MEAN, style.between(results), drawn=hollow),
    )


def _rows(model: str, rows: pd.DataFrame, colour: Mapping[int, str]) -> dots.DotPanel:
    ordered = sorted(as_rows(rows), key=_place)[: dots.MOST_ROWS]
    names, shared = style.told_apart(configurations.told_by_batch(ordered))
    made = [_dot(name, row, colour) for name, row in zip(names, ordered, strict=True)]
    return dots.DotPanel(", ".join([model, *shared]), f"throughput ({unit(rows)}/s)", made, dots.from_zero(made))


def _place(row: ConfigurationRow) -> tuple[int, int, float]:
    kind = 2 if not row["n"] else 1 if configurations.sign(row) else 0
    return kind, int(row["batch"]), -float(row["samples_per_second"]) if row["n"] else 0.0


def _dot(name: str, row: ConfigurationRow, colour: Mapping[int, str]) -> dots.Dot:
    sign = configurations.sign(row)
    named = f"{name} {sign}".rstrip()
    if not row["n"]:
        cross = dots.HOLLOW_CROSS if configurations.implied(row) else dots.CROSS
        return dots.Dot(named, configurations.word(row), None, marker=cross)
    return dots.Dot(
        named,
        number(row["samples_per_second"], _half(row)),
        float(row["samples_per_second"]),
        dots.interval(row["interval_low"], row["interval_high"]),
        style.GREY if sign else colour[int(row["workers"])],
        "s" if any(row["allreduce"] in wires for wires in CODED.values()) else "o",
        hollow=bool(sign),
    )


def _half(row: ConfigurationRow) -> float | None:
    """Half of the interval of its throughput."""
    return (row["interval_high"] - row["interval_low"]) / 2 if known(row["interval_low"]) else None


VIEW = View(
    "How fast is each configuration?",
    (
        ModelTable("throughput", listing, table, "throughput", bars="samples_per_second"),
        StudyTable("verdicts", verdicts_listing, title="Beside the fastest", files=("md",)),
    ),
    (Drawing("throughput", draw), Drawing("frameworks", draw_frameworks)),
)
