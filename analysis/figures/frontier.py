"""Memory against batch, and where it ends: a panel for each model, a line for each series, crosses where memory was
exhausted (hollow: not run, as a smaller batch was)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.figures import marks, series_styles, style
from analysis.figures.marks import EndLabel, Failure
from analysis.figures.series_styles import Look
from analysis.frames.results import Results
from analysis.tables import notes
from analysis.why.frontier import Family, families

MOST_LABELS, MOST_COLUMNS = 16, 2
LOGARITHMIC_FROM = 25  # largest over smallest peak of a panel


def draw(results: Results) -> Figure | None:
    """The figure, or None where memory was measured at one batch size only and was never exhausted."""
    every = {model: families(results, model) for model in results.models}
    every = {
        model: [family for family in of_model if family.rows or family.out] for model, of_model in every.items()
        if any(len(family.batches) > 1 or family.out for family in of_model) and any(family.rows for family in of_model)
    }  # fmt: skip
    if not every:
        return None
    look = series_styles.of(results.configurations)
    panels = list(every.items())
    columns = min(len(panels), MOST_COLUMNS)
    failed = [_failures(of_model, look) for _, of_model in panels]
    labels = [_named(of_model) for _, of_model in panels]
    layout = style.Layout(
        panel_width=2.5,
        panel_height=max(2.2, (max(map(len, labels)) + 1) * 1.3 * marks.GAP),
        left=style.left_of(["100,000"]),
        gutters=tuple(
            marks.gutter(
                [*(text for of_model in labels[place::columns] for text in of_model),
                 *(f.text for of_model in failed[place::columns] for f in marks.merged(of_model))],
                (model for model, _ in panels[place::columns]), 2.5,
            )
            for place in range(columns)
        ),
        strip=marks.strip_height(failed),
    )  # fmt: skip
    title = f"Memory against batch: {results.study.name}"
    sheet = style.sheet(-(-len(panels) // columns), columns, layout, title, _footnote(every, results))
    for index, (model, of_model) in enumerate(panels):
        axis, strip = sheet.at(index)
        axis.set_title(model, loc="left", weight="bold")
        style.name_y(axis, "peak memory of a worker (MB)", layout)
        _panel(axis, of_model, look, labels[index], layout)
        marks.strip(axis, strip, failed[index], "batch per worker (samples)")
    for index in range(len(panels), len(sheet.axes) * columns):
        style.remove(sheet, index)
    return sheet.figure


def _panel(
    axis: Axes, families: Sequence[Family], look: dict[str, Look], named: list[str], layout: style.Layout
) -> None:
    batches = sorted({batch for family in families for batch in (*family.batches, *family.out, *family.implied)})
    span = max(math.log2(batches[-1] / batches[0]), 1.0)
    axis.set_xlim(math.log2(batches[0]) - 0.12 * span, math.log2(batches[-1]) + 0.12 * span)
    labels = []
    shown = [family for family in families if family.rows]
    for index, family in enumerate(shown):
        ours = look[family.series]
        dodge = (index - (len(shown) - 1) / 2) * min(0.02, 0.12 / len(shown)) * span  # many hold the same
        x, peaks = np.log2(np.array(family.batches, dtype=float)), np.array(family.peaks) / 1e6
        if family.line:
            ahead = max(family.batches[-1], family.smallest_out or 0)
            along = np.geomspace(family.batches[0], ahead, 60)
            axis.plot(
                np.log2(along) + dodge, (family.line[0] + family.line[1] * along) / 1e6, color=ours.colour,
                linewidth=1.0, linestyle=ours.dashes, zorder=2,
            )  # fmt: skip
        axis.plot(
            x + dodge, peaks, linestyle="", marker=ours.marker, color=ours.colour, zorder=3,
            markerfacecolor="white" if ours.hollow else ours.colour, markeredgecolor=ours.colour,
        )  # fmt: skip
        if family.smallest_out is not None and (at := family.bytes_at(family.smallest_out)):
            marks.cross(axis, math.log2(family.smallest_out) + dodge, at / 1e6, ours.colour, False)
        if family.series in named:
            labels.append(EndLabel(float(x[-1] + dodge), float(peaks[-1]), family.series, ours.colour))
    _scale(axis, shown)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.grid(False, axis="x")
    marks.ticks(axis, [math.log2(batch) for batch in batches], [str(batch) for batch in batches], layout.panel_width)
    marks.end_labels(axis, labels, layout.panel_height)


def _scale(axis: Axes, shown: Sequence[Family]) -> None:
    """From 0, unless that would press the small ones together."""
    needed = [family.bytes_at(family.smallest_out) or 0.0 for family in shown if family.smallest_out is not None]
    most = max([peak for family in shown for peak in family.peaks] + needed) / 1e6
    least = min(peak for family in shown for peak in family.peaks) / 1e6
    if most > LOGARITHMIC_FROM * least:
        axis.set_yscale("log")
        axis.set_ylim(0.7 * least, 1.3 * most)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    else:
        axis.set_ylim(0, 1.06 * most)
        axis.yaxis.set_major_locator(MaxNLocator(6))
    axis.yaxis.set_minor_locator(NullLocator())


def _named(families: Sequence[Family]) -> list[str]:
    """Series that are labelled: all, or those of most and least memory."""
    names = [family.series for family in families if family.rows]
    if len(names) <= MOST_LABELS:
        return names
    by_peak = sorted((family for family in families if family.rows), key=lambda family: family.peaks[-1])
    return [by_peak[0].series, by_peak[-1].series]


def _failures(families: Sequence[Family], look: dict[str, Look]) -> list[Failure]:
    failures = []
    for family in families:
        if family.out or family.implied:
            statuses = [
                *(("oom", str(batch)) for batch in family.out),
                *(("oom (implied)", str(b)) for b in family.implied),
            ]
            at, implied = (tuple(math.log2(batch) for batch in some) for some in (family.out, family.implied))
            text = marks.failure_text(family.series, statuses)
            failures.append(Failure((*at, *implied), text, look[family.series].colour, frozenset(implied)))
    return failures


def _footnote(every: dict[str, list[Family]], results: Results) -> list[str]:
    shown = [family for families in every.values() for family in families]
    what = "Points: the largest peak of a worker over the repeats. Lines: fixed + per sample x batch, fitted."
    if any(family.smallest_out is not None for family in shown):
        what += (
            " Crosses: out of memory; on a line, what it would have needed. What memory can hold lies between the last "
            "point and the cross."
        )
    if any(family.implied for family in shown):
        what += " Hollow: not run, as a smaller batch was out of memory."
    return [what, f"{notes.source(results)}."]
