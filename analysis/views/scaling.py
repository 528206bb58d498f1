"""Scaling laws over worker counts, and the return of each further worker with its limit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from analysis.findings import grouped
from analysis.frames.configurations import known
from analysis.frames.results import Results, once, unit
from analysis.frames.rows import bounded
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import SPEEDS, EndLabel, SeriesLook
from analysis.statistics.knee import FARTHEST, SHARE, Extrapolation, Knee, Returned, extrapolations, knee, returns
from analysis.statistics.scaling_laws import Family, LawComparison, comparisons
from analysis.views.view import Drawing, StudyTable, View

FAMILY = ("model", "family", "framework", "allreduce", "batch_per_worker", "global_batch")
FITTED = ("law", "best", "not_told_apart", "held_out_error", "held_out_largest", "misfit", "noise", "formula", "why")
RETURN = ("before", "after", "returned", "returned_low", "returned_high", "knee", "knee_low", "knee_high")
MOST_FAMILIES = 60  # whose knee is looked for: a bootstrap each
MOST_DECLINED = 6  # sentences; the rest are counted
LIMIT = f"scaling limit at {100 * SHARE:.0f} %"


@once
def knees(results: Results) -> list[tuple[Extrapolation, Knee]]:
    """The knee of every family that a law describes; of the first MOST_FAMILIES."""
    return [(beyond, knee(beyond)) for beyond in extrapolations(results)[:MOST_FAMILIES]]


def laws_table(results: Results) -> pd.DataFrame:
    """A row for each law of each family, the best first; of a family without any, one with the reason."""
    rows: list[dict[str, Any]] = []
    for comparison in comparisons(results):
        about = _keys(comparison.family)
        if not isinstance(comparison, LawComparison):
            rows.append(about | {"why": comparison.why})
            continue
        for place, fit in enumerate(comparison.fits):
            rows.append(
                about
                | {
                    "law": fit.law.name,
                    "best": place == 0,
                    "not_told_apart": place < comparison.alike,
                    "held_out_error": fit.error,
                    "held_out_largest": float(fit.held_out[-1]),
                    "misfit": fit.misfit,
                    "noise": comparison.noise.half_width,
                    "formula": fit.formula,
                    "why": comparison.why,
                }
            )
    return pd.DataFrame(rows, columns=[*FAMILY, *FITTED], dtype=object)


def returns_table(results: Results) -> pd.DataFrame:
    """A row for each step between measured counts, with the family's knee where it has a law."""
    found = {id(beyond.compared): turn for beyond, turn in knees(results)}
    rows = []
    for comparison in comparisons(results):
        turn, about = found.get(id(comparison)), _keys(comparison.family)
        about |= bounded("knee", turn.workers, turn.low, turn.high) if turn else {}
        for step in returns(comparison.family):
            returned = bounded("returned", step.share, step.low, step.high)
            rows.append(about | {"before": step.before, "after": step.after} | returned)
    return pd.DataFrame(rows, columns=[*FAMILY, *RETURN], dtype=object)


def _keys(family: Family) -> dict[str, Any]:
    held = "global_batch" if family.strong else "batch_per_worker"
    keys = {key: family.about[key] for key in ("framework", "allreduce")}
    return {"model": family.model, "family": family.label, **keys, held: int(family.about[held])}


def laws_listing(results: Results) -> Listing | None:
    """Every law of every family that has four worker counts; without any, the reasons."""
    every = comparisons(results)
    if not every:
        return None
    rows = []
    for comparison in (comparison for comparison in every if isinstance(comparison, LawComparison)):
        for place, fit in enumerate(comparison.fits):
            name = comparison.family.name if place == 0 else ""
            verdict = "best" if place == 0 else "too close to call" if place < comparison.alike else ""
            errors = (f"{100 * fit.error:.1f} %", f"{100 * fit.held_out[-1]:+.1f} %", f"{100 * fit.misfit:.1f} %")
            counts = ", ".join(f"{count:.0f}" for count in comparison.family.workers) if place == 0 else ""
            rows.append((name, counts, fit.law.name, verdict, *errors, fit.formula))
    lines = [
        "Worker-seconds of a sample as a sum of terms in the worker count n, fitted to relative errors with no "
        "coefficient below zero. Held-out error: each count in turn predicted from the others (mean of its size; that "
        "of the largest count, which is an extrapolation). Misfit: what residuals have beyond the noise.",
        "Too close to call: a held-out error larger by no more than the noise of a measured mean (95 %). alpha-beta: "
        "compute, and an allreduce of latency and bytes. USL: universal scalability law. Extra-P: one term "
        "n^i log2(n)^j, chosen anew for each fit.",
        *ended(results),
        *declined(results),
    ]
    header = (
        "family",
        "workers",
        "law",
        "verdict",
        "held-out error",
        "at the largest",
        "misfit",
        "worker-seconds of a sample",
    )
    return notes.listing(results, "Scaling laws", header, rows, lines)


def returns_listing(results: Results) -> Listing | None:
    """The return of each further worker as measured, and the knee where there is a law."""
    found = {id(beyond.compared): turn for beyond, turn in knees(results)}
    rows = []
    for comparison in comparisons(results):
        steps, turn = returns(comparison.family), found.get(id(comparison))
        if steps or turn:
            returned, limit = "; ".join(map(_step, steps)), turn.text if turn else "no law"
            rows.append({"family": comparison.family.name, "marginal efficiency": returned, LIMIT: limit})
    if not rows:
        return None
    lines = [
        "Marginal efficiency: the throughput that each worker between two measured counts added, as a share of that of "
        f"one worker, with its 95 % interval. Scaling limit: the last count with a marginal efficiency of at least "
        f"{100 * SHARE:.0f} %, by all laws that are too close to call.",
        *ended(results),
        *declined(results),
    ]
    return notes.study_listing(results, "Marginal efficiency of workers", rows, lines)


def ended(results: Results) -> list[str]:
    """A sentence where a law is of one host, or of several only: the worker counts that it is not asked for."""
    families = [compared.family for compared in comparisons(results) if isinstance(compared, LawComparison)]
    most, fewest = {family.most for family in families} - {None}, {family.fewest for family in families} - {1}
    of_one = (
        f"beyond the {' or '.join(map(str, sorted(filter(None, most))))} workers that one host holds" if most else ""
    )
    of_more = f"below the {' or '.join(map(str, sorted(fewest)))} workers that ran over hosts" if fewest else ""
    where = " or ".join(filter(None, (of_one, of_more)))
    return [f"No law is asked for counts {where}: workers of one host and over hosts follow two."] if where else []


def declined(results: Results) -> list[str]:
    """The reasons why families have no law, a sentence each, with the first family that has it."""
    without = grouped((one for one in comparisons(results) if one.why), lambda one: one.why)
    lines = [
        f"No scaling law of {ours[0].family.name}{f' and {len(ours) - 1} more' if len(ours) > 1 else ''}: {why}."
        for why, ours in without.items()
    ]
    more = len(lines) - MOST_DECLINED
    return lines[:MOST_DECLINED] + ([f"{more} more reasons: see scaling-laws.csv."] if more > 0 else [])


def _step(step: Returned) -> str:
    bounds = "" if step.low is None or step.high is None else f" [{100 * step.low:.0f}, {100 * step.high:.0f}]"
    return f"{step.before} to {step.after}: {100 * step.share:.0f} %{bounds}"


MOST_PANELS = 9
POINTS = 60
IDEAL = "ideal"


def draw(results: Results, model: str) -> Figure | None:
    """The figure of one model; None of one without a law."""
    every = [(beyond, turn) for beyond, turn in knees(results) if beyond.compared.family.model == model]
    if not every:
        return None
    shown = every[:MOST_PANELS]
    most = max(float(beyond.compared.family.rates.max()) for beyond, _ in shown)
    return style.figure_of(
        f"Scaling laws of {model}: {results.study.name}",
        [
            style.Panel(
                beyond.compared.family.label,
                partial(_panel, beyond=beyond, turn=turn),
                x="workers",
                y=f"throughput ({unit(results.frame_of(model))}/s)",
                labels=(beyond.compared.best.law.name, IDEAL),
            )
            for beyond, turn in shown
        ],
        _footnote(shown, len(every), results),
        panel_width=2.1,
        panel_height=2.1,
        left=style.left_of([f"{10 * most:,.0f}"]),
        below=0.46,
    )


def _limit_shown(beyond: Extrapolation, turn: Knee) -> bool:
    """True where the scaling limit lies on the axis."""
    return bool(beyond.compared.family.workers.min() <= turn.workers <= beyond.farthest(FARTHEST))


def _panel(axis: Axes, layout: style.Layout, beyond: Extrapolation, turn: Knee) -> None:
    blue, orange = style.style_colours(2)
    family = beyond.compared.family
    counts, rates = family.workers, family.rates
    along = np.geomspace(counts.min(), beyond.farthest(FARTHEST), POINTS)
    law, bounds = beyond.rates(along), beyond.bounds(along)
    if bounds is not None:
        axis.fill_between(along, *bounds, color=blue, alpha=0.18, linewidth=0, zorder=1)
    alone = float(law[0]) / float(along[0])
    axis.plot(along, alone * along, color=style.GREY, linewidth=0.9, linestyle="--", zorder=2)
    axis.plot(along, law, color=blue, zorder=3)
    style.interval_line(axis, counts, pd.DataFrame(family.rows), SPEEDS, SeriesLook(style.DARK, dashes=""))
    if _limit_shown(beyond, turn):
        axis.axvline(turn.workers, color=orange, linewidth=1.2, linestyle=":", zorder=2)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlim(counts.min() / 1.15, along[-1] * 1.15)
    axis.set_ylim(rates.min() / 1.5, max(alone * along[-1], rates.max()) * 1.3)
    style.ticked(axis.yaxis, LogLocator(subs=(1, 2, 5), numticks=7))
    axis.grid(False, axis="x")
    powers = [2**power for power in range(int(along[-1]).bit_length())]
    style.even_ticks(axis, powers, [f"{count:,}" for count in powers], layout.panel_width)
    ends = [EndLabel(along[-1], float(law[-1]), beyond.compared.best.law.name, blue)]
    ends.append(EndLabel(along[-1], float(alone * along[-1]), IDEAL, style.GREY))
    style.end_labels(axis, ends, layout.panel_height)


def _footnote(shown: Sequence[tuple[Extrapolation, Knee]], families: int, results: Results) -> list[str]:
    compared = [beyond.compared for beyond, _ in shown]
    with_bars = any(known(row["interval_low"]) for one in compared for row in one.family.rows)
    bars = ", with 95 % interval between repeats" if with_bars else ""
    with_band = any(one.noise.errors is not None for one in compared)
    limit = f"Dotted: the scaling limit, beyond which the marginal efficiency is below {100 * SHARE:.0f} %."
    return notes.under_figure(
        results,
        f"Points: measured{bars}. Line: the law with the smallest held-out error. Dashed: linear.",
        (with_band, "Band: 95 %, over all laws that are too close to call."),
        (any(_limit_shown(beyond, turn) for beyond, turn in shown), limit),
        (families > len(shown), f"The first {len(shown)} of {families} families."),
    )


RETURNS = View(
    "What does another worker bring?",
    (StudyTable("returns", returns_listing, returns_table, section="next"),),
)
LAWS = View(
    "Which law does throughput follow as workers are added?",
    (StudyTable("scaling-laws", laws_listing, laws_table, section="next"),),
    (Drawing.of_models("scaling-law", draw, section="next"),),
)
