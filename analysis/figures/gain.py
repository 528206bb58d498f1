"""What 16-bit allreduce gains over fp32: a panel for each model, a row for each pair, its ratio and interval."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.figures import captions, marks, style
from analysis.figures.captions import RATIO
from analysis.frames import comparability, launches, outcomes, series
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from analysis.frames.study import workers_text
from analysis.statistics import allreduce_gain
from analysis.statistics.allreduce_gain import FASTER, NO_DIFFERENCE, NO_INTERVAL, NOT_COMPARABLE, NOT_RESOLVED, SLOWER

ROW = 0.23  # inches
MOST_ROWS = 40
MOST_COLUMNS = 2
STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0)


def draw(results: Results) -> Figure | None:
    """The figure, or None where the study measured no pair that differs in allreduce precision only."""
    pairs = allreduce_gain.gains(results)
    if pairs.gain.isna().all():
        return None
    signs = {row["configuration"]: comparability.sign(row) for row in results.rows}
    names = _names(pairs, results)
    pairs = pairs.assign(
        name=names, text=[_text(pair, signs, results.study.target_interval) for pair in as_rows(pairs)]
    )
    models = [model for model in results.models if (pairs.model == model).any()]
    panels = [pairs[pairs.model == m].sort_values(["workers", results.study.batch_key, "name"]) for m in models]
    most = max(len(panel) for panel in panels)
    panels = [panel.head(MOST_ROWS) for panel in panels]
    columns = min(len(models), MOST_COLUMNS)
    blue, orange, green = style.colours(3)
    looks = {FASTER: ("o", blue, blue), SLOWER: ("s", orange, orange), NO_DIFFERENCE: ("o", "white", style.GREY)}
    looks |= {NOT_RESOLVED: ("o", "white", style.GREY), NO_INTERVAL: ("D", "white", green)}
    layout = style.Layout(
        left=0.3 + max(style.inches(name, style.SMALL) for name in names),
        gutters=tuple(
            marks.gutter(text for panel in panels[c::columns] for text in panel.text) for c in range(columns)
        ),
        panel_height=max(len(panel) for panel in panels) * ROW + 0.1,
    )
    what = "All else is equal. Filled: faster or slower (p < 0.05, corrected for all pairs). Open grey: not resolved."
    if most > MOST_ROWS:
        what += f" The first {MOST_ROWS} of up to {most} pairs of a model; tables/ has all."
    ours = results.configurations[results.configurations.configuration.isin([*pairs.configuration, *pairs.reference])]
    by_id = {row["configuration"]: row for row in results.rows}
    sure = pairs[pairs.gain_low.notna()]
    both = [(by_id[a], by_id[b]) for a, b in zip(sure.configuration, sure.reference, strict=True)]
    footnote = captions.footnote(
        results, ours, what, RATIO, launches.interval_of(both), drawn="Grey text: not comparable."
    )
    title = f"Gain of {_precisions(pairs)} over fp32 allreduce: {results.study.name}"
    sheet = style.sheet(-(-len(models) // columns), columns, layout, title, footnote)
    low, high = _limits(pairs)
    for index, (model, panel) in enumerate(zip(models, panels, strict=True)):
        axis, _ = sheet.at(index)
        axis.set_title(model, loc="left", weight="bold")
        axis.set_xlabel(f"throughput with {_precisions(pairs)} / with fp32")
        axis.set_xlim(low, high)
        _panel(axis, panel, looks)
    for index in range(len(models), len(sheet.axes) * columns):
        style.remove(sheet, index)
    return sheet.figure


def _panel(axis: Axes, panel: pd.DataFrame, looks: dict[str, tuple[str, str, str]]) -> None:
    axis.axvline(1.0, color=style.DARK, linewidth=0.9, zorder=2)
    left = axis.get_xlim()[0]
    for row, pair in enumerate(as_rows(panel)):
        if pair["verdict"] in looks:
            marker, face, edge = looks[pair["verdict"]]
            if not pd.isna(pair["gain_low"]):
                axis.plot([pair["gain_low"], pair["gain_high"]], [row, row], color=edge, linewidth=1.3, zorder=3)
            axis.plot(
                pair["gain"], row, marker=marker, markerfacecolor=face, markeredgecolor=edge, markeredgewidth=1.2,
                linestyle="", markersize=5.5, zorder=4,
            )  # fmt: skip
        elif pair["verdict"] != NOT_COMPARABLE:
            whole = all(part.endswith(outcomes.IMPLIED) for part in pair["verdict"].split(", "))
            marks.cross(axis, left, row, style.DARK, whole)
        axis.annotate(
            pair["text"], xy=(1.05, row), xycoords=("axes fraction", "data"), va="center", fontsize=style.SMALL,
            annotation_clip=False, color=style.GREY if pair["verdict"] == NOT_COMPARABLE else style.DARK,
        )  # fmt: skip
    axis.set_ylim(len(panel) - 0.4, -0.6)
    axis.set_yticks(range(len(panel)), panel.name)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_locator(FixedLocator(_ticks(*axis.get_xlim())))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axis.grid(False, axis="y")


def _limits(pairs: pd.DataFrame) -> tuple[float, float]:
    """Of the x axis: every interval and 1; a very wide interval is cut at three times the farthest ratio."""
    means = pairs.gain.dropna().to_numpy(dtype=float)
    farthest = max([0.02, *np.abs(means - 1)])
    low = max(0.0, 1 - 3 * farthest, np.nanmin([1, *pairs.gain_low.to_numpy(dtype=float), *means]))
    high = min(1 + 3 * farthest, np.nanmax([1, *pairs.gain_high.to_numpy(dtype=float), *means]))
    room = 0.06 * max(high - low, 0.02)
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """At most six round numbers, 1 among them."""
    fine = ((high - low) / step <= 6 for step in STEPS)
    step = next((step for step, fits in zip(STEPS, fine, strict=True) if fits), high - low)
    first, last = math.ceil((low - 1) / step), math.floor((high - 1) / step)
    return [1 + count * step for count in range(first, last + 1)]


def _names(pairs: pd.DataFrame, results: Results) -> list[str]:
    """`batch 32, 2 workers`, with whatever else tells the pairs of this study apart."""
    extra = [key for key in results.series_keys if key not in ("workers", "allreduce", "framework")]
    several = pairs.framework.nunique() > 1
    names = []
    for pair in as_rows(pairs):
        words = [f"batch {pair[results.study.batch_key]}", workers_text(int(pair["workers"]))]
        words += [str(pair["framework"])] * several + series.words(pair, extra)
        names.append(", ".join(words + [str(pair["allreduce"])] * (pairs.allreduce.nunique() > 1)))
    return names


def _text(pair: dict[Any, Any], signs: dict[str, str], target: float) -> str:
    if pair["verdict"] == NOT_COMPARABLE:
        return f"{NOT_COMPARABLE} {signs[pair['configuration']] or signs[pair['reference']]}"
    if pair["verdict"] == NO_DIFFERENCE:
        return f"{pair['gain']:.2f}, within ±{100 * target:.2g} %"
    if pair["verdict"] == NO_INTERVAL:
        return f"{pair['gain']:.2f} (no interval)"
    if pair["verdict"] in (FASTER, SLOWER, NOT_RESOLVED):
        return f"{pair['gain']:.2f} [{pair['gain_low']:.2f}, {pair['gain_high']:.2f}]"
    return str(pair["verdict"])


def _precisions(pairs: pd.DataFrame) -> str:
    return " and ".join(sorted(pairs.allreduce.unique(), reverse=True))
