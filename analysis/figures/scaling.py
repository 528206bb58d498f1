"""Throughput against workers with the law that fits best, what it says of more of them, and the knee: a figure a model,
a panel for each family with at least four worker counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.figures import marks, style
from analysis.figures.marks import EndLabel
from analysis.frames.baseline import known
from analysis.frames.results import Results, unit
from analysis.scaling.extrapolate import FARTHEST, Extrapolation, extrapolations
from analysis.scaling.fit import Comparison
from analysis.scaling.frame import extrapolated
from analysis.scaling.knee import SHARE, Knee
from analysis.tables import notes
from analysis.text.file_names import file_name

MOST_PANELS, ACROSS = 9, 3
WIDTH = 2.3
POINTS = 60
IDEAL = "ideal"


def draw(results: Results) -> dict[str, Figure]:
    """`scaling-law-<model>`, for each model with a law."""
    figures = {}
    for model in results.models:
        ours = [
            (extrapolation, knee)
            for extrapolation, _, knee in extrapolated(results)
            if extrapolation.family.model == model
        ]
        if ours:
            figures[f"scaling-law-{file_name(model)}"] = _figure(model, ours, results)
    return figures


def _figure(model: str, every: Sequence[tuple[Comparison, Knee]], results: Results) -> Figure:
    shown = every[:MOST_PANELS]
    across = 2 if len(shown) == 4 else min(len(shown), ACROSS)
    most = max(float(extrapolation.family.rates.max()) for extrapolation, _ in shown)
    names = [[extrapolation.best.law.name, IDEAL] for extrapolation, _ in shown]
    layout = style.Layout(
        panel_width=WIDTH, panel_height=2.1, left=style.left_of([f"{10 * most:,.0f}"]), below=0.46,
        gutters=tuple(
            marks.gutter(
                (name for label in names[place::across] for name in label),
                (extrapolation.family.label for extrapolation, _ in shown[place::across]), WIDTH,
            )
            for place in range(across)
        ),
    )  # fmt: skip
    title = f"Scaling laws of {model}: {results.study.name}"
    sheet = style.sheet(-(-len(shown) // across), across, layout, title, _footnote(shown, every, results))
    for index, (extrapolation, knee) in enumerate(shown):
        axis, _ = sheet.at(index)
        axis.set_title(extrapolation.family.label, loc="left", weight="bold")
        rows = results.frame_of(model)
        style.name_y(axis, f"throughput ({unit(rows)}/s)", layout)
        beyond = next(label for label in extrapolations(results) if label.compared is extrapolation)
        _panel(axis, beyond, knee, layout)
    for index in range(len(shown), len(sheet.axes) * across):
        style.remove(sheet, index)
    return sheet.figure


def _panel(axis: Axes, extrapolation: Extrapolation, knee: Knee, layout: style.Layout) -> None:
    blue, orange = style.colours(2)
    fitted, family = extrapolation.compared, extrapolation.compared.family
    counts, rates = family.workers, family.rates
    along = np.geomspace(counts.min(), FARTHEST * counts.max(), POINTS)
    beyond = extrapolation.at(along.tolist())
    law = np.array([at.samples_per_second for at in beyond])
    if beyond[0].low is not None:
        low, high = (np.array([getattr(at, end) for at in beyond], dtype=float) for end in ("low", "high"))
        axis.fill_between(along, low, high, color=blue, alpha=0.18, linewidth=0, zorder=1)
    alone = float(law[0]) / float(along[0])
    axis.plot(along, alone * along, color=style.GREY, linewidth=0.9, linestyle="--", zorder=2)
    axis.plot(along, law, color=blue, zorder=3)
    bounds = np.array([[row["interval_low"], row["interval_high"]] for row in family.rows], dtype=float)
    bars = np.nan_to_num(np.stack([rates - bounds[:, 0], bounds[:, 1] - rates]))
    axis.errorbar(
        counts, rates, yerr=np.clip(bars, 0, None), color=style.DARK, marker="o", linestyle="", capsize=2.5,
        elinewidth=1.0, markeredgecolor="white", markeredgewidth=0.5, zorder=4,
    )  # fmt: skip
    if counts.min() <= knee.workers <= along[-1]:
        axis.axvline(knee.workers, color=orange, linewidth=1.2, linestyle=":", zorder=2)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlim(counts.min() / 1.15, along[-1] * 1.15)
    axis.set_ylim(rates.min() / 1.5, max(alone * along[-1], rates.max()) * 1.3)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    for each in (axis.xaxis, axis.yaxis):
        each.set_minor_locator(NullLocator())
    axis.set_xlabel("workers")
    axis.grid(False, axis="x")
    _ticks(axis, along[-1], layout.panel_width)
    ends = [EndLabel(along[-1], float(law[-1]), fitted.best.law.name, blue)]
    ends.append(EndLabel(along[-1], float(alone * along[-1]), IDEAL, style.GREY))
    marks.end_labels(axis, ends, layout.panel_height)


def _ticks(axis: Axes, most: float, width: float) -> None:
    """Powers of two, as many as have room."""
    counts = [2**power for power in range(int(most).bit_length())]
    widest = max(style.inches(f"{count:,}", style.SMALL) for count in counts) + 0.08
    every = max(1, int(np.ceil(len(counts) * widest / width)))
    axis.set_xticks(counts[::every], [f"{count:,}" for count in counts[::every]])


def _footnote(
    shown: Sequence[tuple[Comparison, Knee]], every: Sequence[tuple[Comparison, Knee]], results: Results
) -> list[str]:
    bounded = any(known(row["interval_low"]) for extrapolation, _ in shown for row in extrapolation.family.rows)
    bars = ", with 95 % interval between repeats" if bounded else ""
    what = f"Points: measured{bars}. Line: the law with the smallest held-out error. Dashed: linear."
    if any(extrapolation.noise.errors is not None for extrapolation, _ in shown):
        what += " Band: 95 %, over the tied laws."
    what += f" Dotted: the knee, beyond which the marginal efficiency is below {100 * SHARE:.0f} %."
    if len(every) > len(shown):
        what += f" The first {len(shown)} of {len(every)} families."
    return [what, f"{notes.source(results)}."]
