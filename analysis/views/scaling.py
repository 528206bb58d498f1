"""What next, as tables and figure: scaling laws, more workers, the knee, the cost, what to measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.frames.configurations import known, over, value_of, values
from analysis.frames.results import Results, once, unit
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel
from analysis.statistics import ranking
from analysis.statistics.knee import FARTHEST, SHARE, Extrapolated, Extrapolation, Knee, Returned, extrapolations
from analysis.statistics.knee import knee as knee_of
from analysis.statistics.knee import returns as returns_of
from analysis.statistics.scaling_laws import FEWEST_COUNTS, Comparison, Declined, Family, Row, comparisons
from analysis.text import file_name, number
from analysis.views import cost as pareto
from scaling_study.stats.intervals import FEWEST_REPEATS

# The configuration most worth measuring next, by three plain rules, in this order:
#
# 1. the winner    Where the fastest configuration of a model is tied with the next (95 %), and at most MOST_REPEATS
#                  repeats of both would tell them apart if their means stay: those repeats.
# 2. the law       Of counts not run, up to twice the largest: the one that takes most off the doubt about four times
# the
#                  largest. The doubt is the spread of all draws of all laws that are not told apart; a measurement at
# one
#                  count, as noisy as the others, takes off what is correlated with it there (the variance that a
# linear
#                  regression over the draws explains).
# 3. a law at all  With fewer than four worker counts none can be fitted: the smallest power of two not run.
#
# What this machine has no room for is suggested only where nothing else is, and says so.

MOST_REPEATS = 30
WINNER, LAW, FIRST_LAW = "the winner", "the law", "a law at all"


@dataclass(frozen=True)
class Suggestion:
    """`rule`: one of the three. `keys`: the trial keys that say what to run, with `repeats` of what was run already."""

    rule: str
    sentence: str
    keys: dict[str, Any]


def suggestions(results: Results, compared: Sequence[Comparison | Declined]) -> list[Suggestion]:
    """What is most worth measuring, first things first; empty where nothing is."""
    chosen = [winner for model in results.models if (winner := _winner(results, model))]
    laws = [
        extrapolation for extrapolation in extrapolations(results) if extrapolation.compared.noise.errors is not None
    ]
    ranked = sorted(filter(None, (_count(law, results) for law in laws)), key=lambda pair: pair[0], reverse=True)
    chosen += [suggestion for _, suggestion in ranked[:1]]
    if not laws:
        first = sorted(
            filter(None, (_first(comparison.family, results) for comparison in compared)), key=lambda pair: pair[0]
        )
        chosen += [suggestion for _, suggestion in first[:1]]
    return chosen


def _winner(results: Results, model: str) -> Suggestion | None:
    """Repeats that would separate the fastest configuration from the nearest one that is tied with it (95 %)."""
    rows = next(iter(ranking.equal_work_alike(results.rows_of(model))), [])
    fit = [row for row in rows if row["n"] >= 2 and not row["oversubscribed"] and not row["not_comparable"]]
    if len(fit) < 2:
        return None
    best = max(fit, key=lambda row: row["samples_per_second"])
    rivals = [row for row in fit if row is not best and _alike(best, row)]
    other = max(rivals, key=lambda row: row["samples_per_second"], default=None)
    count = None if other is None else repeats_apart(best, other)
    if other is None or count is None or count > MOST_REPEATS:
        return None
    count = max(count, int(best["n"]) + 1, int(other["n"]) + 1)  # those that there are have not done it
    gap = 100 * (float(best["samples_per_second"]) / float(other["samples_per_second"]) - 1)
    return Suggestion(
        WINNER,
        f"{model}: {_name(best)} and {_name(other)} differ by {gap:.1f} %, which {_had(best, other)} do not resolve; "
        f"{count} repeats of each would, if the means stay.",
        {"configurations": [best["configuration"], other["configuration"]], "repeats": count},
    )


def _alike(best: Row, other: Row) -> bool:
    low = over(best, other).low
    return low is None or low <= 1


def repeats_apart(a: Row, b: Row) -> int | None:
    """How many repeats of each would leave 1 outside the 95 % interval of their ratio, at this ratio and spread; None
    where the spread is unknown, or more than a million would not do."""
    from scipy.special import stdtrit

    centred = [np.log(np.array(values(row)) / np.mean(values(row))) for row in (a, b)]
    freedom = sum(len(repeats) - 1 for repeats in centred)
    gap = abs(math.log(float(a["samples_per_second"]) / float(b["samples_per_second"])))
    if freedom < 1 or gap == 0:
        return None
    spread = math.sqrt(sum(float((repeats**2).sum()) for repeats in centred) / freedom)
    count = FEWEST_REPEATS
    while float(stdtrit(2 * count - 2, 0.975)) * spread * math.sqrt(2 / count) >= gap:
        count = max(count + 1, int(1.1 * count))
        if count > 1_000_000:
            return None
    return count


def _count(extrapolation: Extrapolation, results: Results) -> tuple[float, Suggestion] | None:
    """(doubt taken off, which count would) for one family."""
    compared, family = extrapolation.compared, extrapolation.compared.family
    largest, room = int(family.workers.max()), _room(family, results)
    counts = [count for count in extrapolation.counts if count <= 2 * largest]
    inside = [count for count in counts if room is None or count <= room]
    chosen = inside or counts
    if not chosen:
        return None
    target = FARTHEST * largest
    at = np.concatenate([np.log(law.rates(np.array([target, *chosen], dtype=float))) for law in extrapolation.drawn])
    doubt = float(at[:, 0].var())
    if not doubt:
        return None
    assert compared.noise.errors is not None
    noise = float(np.median(compared.noise.errors)) ** 2
    covariances = ((at[:, :1] - at[:, 0].mean()) * (at[:, 1:] - at[:, 1:].mean(axis=0))).mean(axis=0)
    taken = covariances**2 / (at[:, 1:].var(axis=0) + noise)
    best = int(taken.argmax())
    after = math.sqrt(max(0.0, doubt - float(taken[best])))
    sentence = (
        f"{_of(family)}: {chosen[best]} workers. Of all counts not run it would take most off the doubt about "
        f"{target}: from ±{196 * math.sqrt(doubt):.0f} % to about ±{196 * after:.0f} %{_no_room(chosen[best], room)}."
    )
    keys = _keys(family, chosen[best])
    return math.sqrt(doubt) - after, Suggestion(LAW, sentence, keys)


def _first(family: Family, results: Results) -> tuple[tuple[bool, int], Suggestion] | None:
    """(whether there is no room, how many counts are missing), and the next count, for a family without a law."""
    seen, count = {int(workers) for workers in family.workers}, 1
    missing = FEWEST_COUNTS - len(seen)
    if missing <= 0:
        return None
    while count in seen:
        count *= 2
    room = _room(family, results)
    more = f"; {missing - 1} more would still be missing" if missing > 1 else ""
    measured = f"{len(seen)} worker count{'s were' if len(seen) > 1 else ' was'} measured"
    sentence = (
        f"{_of(family)}: {count} worker{'s' * (count != 1)}. {measured}, and a scaling law takes {FEWEST_COUNTS}{more}"
        f"{_no_room(count, room)}."
    )
    lacks = room is not None and count > room
    return (lacks, missing), Suggestion(FIRST_LAW, sentence, _keys(family, count))


def _room(family: Family, results: Results) -> int | None:
    """How many workers this machine has room for; None where it is not the only host, or unknown."""
    row, machine = family.about, results.study.machine
    if known(row["hosts"]):
        return None
    if row["device"] == "cuda":
        return len(machine["gpus"]) if machine.get("gpus") is not None else None
    cores = machine.get("cores")
    share = int(row["cores_per_worker"]) if known(row["cores_per_worker"]) else 1
    return int(cores) // share if isinstance(cores, int) and share else None


def _no_room(count: int, room: int | None) -> str:
    return f" (this machine has room for {room})" if room is not None and count > room else ""


def _keys(family: Family, workers: int) -> dict[str, Any]:
    about = family.about
    batch = "global_batch" if family.strong else "batch_per_worker"
    return {key: value_of(about, key) for key in ("framework", "model", "allreduce", batch)} | {"workers": workers}


def _of(family: Family) -> str:
    return f"{family.model}, {family.label}"


def _name(row: Row) -> str:
    return f"{row['series']}, batch {row['batch']}"


def _had(a: Row, b: Row) -> str:
    counts = sorted({int(a["n"]), int(b["n"])})
    return f"{' and '.join(map(str, counts))} repeats"


# What next, as frames: the columns behind each table of tables/scaling.py.

FAMILY = ("model", "family", "framework", "allreduce", "batch_per_worker", "global_batch")
MOST_FAMILIES = 60  # that are extrapolated: a bootstrap each


def frames(results: Results) -> dict[str, pd.DataFrame]:
    """All of them, by the names of listing.named()."""
    makers = {"scaling-laws": laws, "extrapolation": predictions, "returns": returns, "cost": cost}
    return {name: table(results) for name, table in makers.items()}


@once
def extrapolated(results: Results) -> list[tuple[Comparison, list[Extrapolated], Knee]]:
    """Every family with a law, what it says of counts not run, and its knee; of the first MOST_FAMILIES."""
    extrapolations_of = []
    for beyond in extrapolations(results)[:MOST_FAMILIES]:
        extrapolations_of.append((beyond.compared, beyond.at(beyond.counts), knee_of(beyond)))
    return extrapolations_of


def laws(results: Results) -> pd.DataFrame:
    """A row for each law of each family, the best first; of a family without any, one with the reason."""
    columns = [
        "law",
        "best",
        "not_told_apart",
        "held_out_error",
        "held_out_largest",
        "misfit",
        "noise",
        "formula",
        "why",
    ]
    rows: list[dict[str, Any]] = []
    for comparison in comparisons(results):
        if not isinstance(comparison, Comparison):
            rows.append(_frame_of(comparison.family) | {"why": comparison.why})
            continue
        for place, fit in enumerate(comparison.fits):
            rows.append(_frame_of(comparison.family) | {
                "law": fit.law.name, "best": place == 0, "not_told_apart": place < comparison.alike,
                "held_out_error": fit.error, "held_out_largest": float(fit.held_out[-1]), "misfit": fit.misfit,
                "noise": comparison.noise.half_width, "formula": fit.formula, "why": comparison.why,
            })  # fmt: skip
    return pd.DataFrame(rows, columns=[*FAMILY, *columns], dtype=object)


def predictions(results: Results) -> pd.DataFrame:
    """A row for each count not run of each family with a law."""
    columns = ["workers", "law", "inside", "samples_per_second", "interval_low", "interval_high", "efficiency",
               "efficiency_low", "efficiency_high"]  # fmt: skip
    rows = [
        _frame_of(extrapolation.family) | {
            "workers": at.workers, "law": extrapolation.best.law.name, "inside": at.inside,
            "samples_per_second": at.samples_per_second, "interval_low": at.low, "interval_high": at.high,
            "efficiency": at.efficiency, "efficiency_low": at.efficiency_low, "efficiency_high": at.efficiency_high,
        }
        for extrapolation, points, _ in extrapolated(results) for at in points
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=[*FAMILY, *columns], dtype=object)


def returns(results: Results) -> pd.DataFrame:
    """A row for each step between measured counts, with the family's knee where it has a law."""
    columns = ["before", "after", "returned", "returned_low", "returned_high", "knee", "knee_low", "knee_high"]
    knees = {id(extrapolation.family): turn for extrapolation, _, turn in extrapolated(results)}
    rows = []
    for comparison in comparisons(results):
        turn = knees.get(id(comparison.family))
        bounds = {} if turn is None else {"knee": turn.workers, "knee_low": turn.low, "knee_high": turn.high}
        rows += [
            _frame_of(comparison.family) | bounds | {
                "before": step.before, "after": step.after, "returned": step.share, "returned_low": step.low,
                "returned_high": step.high,
            }
            for step in returns_of(comparison.family)
        ]  # fmt: skip
    return pd.DataFrame(rows, columns=[*FAMILY, *columns], dtype=object)


def cost(results: Results, price: float | None = None) -> pd.DataFrame:
    """A row for each configuration: time and worker-hours for a million samples, money where there is a price."""
    columns = [
        *("configuration", "model", "series", "batch", "workers", "seconds_per_million"),
        *("worker_hours_per_million", "worker_hours_low", "worker_hours_high", "price_per_worker_hour"),
        *("money_per_million", "pareto", "beaten_by", "why"),
    ]
    rows = [
        {name: value_of(point.row, name) for name in columns[:5]} | dict(zip(columns[5:], (
            point.of.seconds, point.of.worker_hours, point.of.low, point.of.high, point.of.price, point.of.money,
            point.place, point.by, point.of.why,
        ), strict=True))
        for model in results.models for point in pareto.points(results, model, price)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns, dtype=object)


def _frame_of(family: Family) -> dict[str, Any]:
    about = family.about
    keys = {key: value_of(about, key) for key in ("framework", "allreduce")}
    held = "global_batch" if family.strong else "batch_per_worker"
    return {"model": family.model, "family": family.label} | keys | {held: int(value_of(about, held))}


# What next, as tables: scaling laws, predictions for more workers, the knee, the cost, what to measure.

MOST_DECLINED = 6  # sentences; the rest are counted


def named(results: Results) -> dict[str, Listing]:
    """File name -> table; those that this study has nothing to say of are left out."""
    makers = {
        "scaling-laws": scaling_laws(results),
        "extrapolation": scaling_predictions(results),
        "returns": scaling_returns(results),
        "cost": scaling_cost(results),
        "next": next_ones(results),
    }
    return {name: listing for name, listing in makers.items() if listing is not None}


def listing(results: Results) -> list[Listing]:
    """All of them, in the order in which they are read."""
    return list(named(results).values())


def declined(results: Results) -> list[str]:
    """Why families have no law: a sentence for each reason, with the first that it is true of."""
    series_of: dict[str, list[str]] = {}
    for comparison in comparisons(results):
        if comparison.why:
            series_of.setdefault(comparison.why, []).append(f"{comparison.family.model}, {comparison.family.label}")
    lines = [
        f"No scaling law of {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}."
        for why, names in series_of.items()
    ]
    more = len(lines) - MOST_DECLINED
    return lines[:MOST_DECLINED] + ([f"{more} more reasons: see scaling-laws.csv."] if more > 0 else [])


def scaling_laws(results: Results) -> Listing | None:
    """Every law of every family that has four worker counts; without any, the reasons."""
    every = comparisons(results)
    if not every:
        return None
    rows = []
    for comparison in (comparison for comparison in every if isinstance(comparison, Comparison)):
        for place, fit in enumerate(comparison.fits):
            name = f"{comparison.family.model}, {comparison.family.label}" if place == 0 else ""
            verdict = "best" if place == 0 else "tied (95 %)" if place < comparison.alike else ""
            errors = (f"{100 * fit.error:.1f} %", f"{100 * fit.held_out[-1]:+.1f} %", f"{100 * fit.misfit:.1f} %")
            counts = ", ".join(f"{count:.0f}" for count in comparison.family.workers) if place == 0 else ""
            rows.append((name, counts, fit.law.name, verdict, *errors, fit.formula))
    lines = [
        "Worker-seconds of a sample as a sum of terms in the worker count n, fitted to relative errors with no "
        "coefficient below zero. Held-out error: each count in turn predicted from the others (mean of its size; that "
        "of the largest count, which is an extrapolation). Misfit: what residuals have beyond the noise.",
        "Tied: a held-out error larger by no more than the noise of a measured mean (95 %). alpha-beta: "
        "compute, and an allreduce of latency and bytes. USL: universal scalability law. Extra-P: one term "
        "n^i log2(n)^j, chosen anew for each fit.",
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
    return _listing("Scaling laws", header, rows, lines, results)


def scaling_predictions(results: Results) -> Listing | None:
    """Throughput and efficiency at counts that were not run."""
    points = extrapolated(results)
    rows = [
        (f"{law.family.model}, {law.family.label}", f"{at.workers:,}", law.best.law.name, _bounded(at), _efficiency(at))
        for law, every, _ in points for at in every
    ]  # fmt: skip
    if not rows:
        return None
    lines = [
        "By the best law. Brackets: 95 %, over the tied laws, the spread between repeats and the held-out errors. An "
        "extrapolation: it does not know of a second host or a saturated switch.",
        "`python -m analysis predict` predicts independently: it simulates one worker's steps on a network, gradient "
        "by gradient. The two should agree.",
    ]
    if len(extrapolations(results)) > MOST_FAMILIES:
        lines.append(f"The first {MOST_FAMILIES} families.")
    header = ("family", "workers", "law", "samples/s", "efficiency")
    return _listing("Predicted worker counts", header, rows, lines, results)


def scaling_returns(results: Results) -> Listing | None:
    """What each further worker returned as measured, and the knee where there is a law."""
    every = comparisons(results)
    knees = {id(extrapolation.family): turn for extrapolation, _, turn in extrapolated(results)}
    rows = []
    for extrapolation in every:
        steps = returns_of(extrapolation.family)
        if steps or id(extrapolation.family) in knees:
            turn = knees.get(id(extrapolation.family))
            text = turn.text if turn else "no law"
            rows.append(
                (f"{extrapolation.family.model}, {extrapolation.family.label}", "; ".join(map(_step, steps)), text)
            )
    if not rows:
        return None
    lines = [
        "Marginal efficiency: the throughput that each worker between two measured counts added, as a share of that of "
        f"one worker, with its 95 % interval. Knee: the last count with a marginal efficiency of at least "
        f"{100 * SHARE:.0f} %, by the tied laws.",
        *declined(results),
    ]
    header = ("family", "marginal efficiency", f"knee at {100 * SHARE:.0f} %")
    return _listing("Marginal efficiency of workers", header, rows, lines, results)


def scaling_cost(results: Results) -> Listing | None:
    """Every comparable configuration, the fastest of each model first."""
    rows = []
    priced, several = False, len(results.models) > 1
    for model in results.models:
        for point in pareto.points(results, model):
            costing = point.of
            priced |= costing.price is not None
            hours = number(costing.worker_hours) + (
                "" if costing.low is None else f" [{number(costing.low)}, {number(costing.high or 0.0)}]"
            )
            money = number(costing.money) if costing.money is not None else costing.why
            place = point.place + (f" by {point.by}" if point.by and point.place == pareto.BEATEN else "")
            name = f"{model}, {costing.row['series']}" if several else str(costing.row["series"])
            rows.append((name, str(costing.row["batch"]), f"{number(costing.seconds)} s", hours, money, place))
    if not rows:
        return None
    lines = [
        "For a million samples. Worker-hours: workers x time, with the 95 % interval between repeats. Beaten: another "
        "is faster and cheaper (p < 0.05); perhaps on the front: what beats it is tied with it (95 %).",
    ]
    if not priced:
        lines.append(
            "No price is set (price_per_worker_hour in a machine file): every worker is assumed to cost the same."
        )
    header = ("configuration", "batch", "time", "worker-hours", "money", "cost against time")
    return _listing("Cost of a million samples", header, rows, lines, results)


def next_ones(results: Results) -> Listing | None:
    """What is most worth measuring."""
    suggested = suggestions(results, comparisons(results))
    if not suggested:
        return None
    lines = [
        "First what decides the winner of a model, if at most 30 repeats do; then the worker count that reduces most "
        "the uncertainty at four times the largest count measured; where no family has four counts, the next count.",
    ]
    rows = [(suggestion.rule, suggestion.sentence) for suggestion in suggested]
    return _listing("Most worth measuring next", ("what for", "what"), rows, lines, results)


def _bounded(at: Extrapolated) -> str:
    bounds = "" if at.low is None or at.high is None else f" [{number(at.low)}, {number(at.high)}]"
    return number(at.samples_per_second) + bounds


def _efficiency(at: Extrapolated) -> str:
    low, high = at.efficiency_low, at.efficiency_high
    bounds = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * at.efficiency:.0f} %{bounds}"


def _step(step: Returned) -> str:
    bounds = "" if step.low is None or step.high is None else f" [{100 * step.low:.0f}, {100 * step.high:.0f}]"
    return f"{step.before} to {step.after}: {100 * step.share:.0f} %{bounds}"


def _listing(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], lines: list[str], results: Results
) -> Listing:
    below = (*notes.how_it_differs(results.configurations), *lines, f"{notes.source(results)}.")
    return Listing(f"{title} ({results.heading})", header, tuple(rows), below)


# Throughput against workers with the law that fits best, what it says of more of them, and the knee: a figure a
# model, a panel for each family with at least four worker counts.

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
            style.gutter(
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
    blue, orange = style.style_colours(2)
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
    style.end_labels(axis, ends, layout.panel_height)


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
