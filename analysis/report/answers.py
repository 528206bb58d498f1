"""The answers to a study, model by model: the fastest, the cheapest, the most efficient, the knee; and what reaches a
target soonest, where there was one.

Each with its interval and with what is tied with it; or with the reason why there is no answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import pandas as pd

from analysis import to_target
from analysis.frames.baseline import known
from analysis.frames.precision import said_of, widths
from analysis.frames.results import Results, unit
from analysis.frames.rows import as_rows
from analysis.report.content import Card
from analysis.scaling import cost, pareto
from analysis.scaling.fit import Comparison, comparisons
from analysis.scaling.frame import extrapolated
from analysis.scaling.knee import SHARE, Returned, returns
from analysis.statistics import ranking
from analysis.tables import notes
from analysis.text.number_formats import number
from analysis.to_target import ties

SOONEST = "soonest to "
CHEAPEST = "cheapest for a million samples"
MOST_ALIKE = 4  # names under an answer; the rest are counted
Row = Mapping[Any, Any]


def of(results: Results, model: str) -> tuple[Card, ...]:
    """Fastest, cheapest, best efficiency, knee; then the soonest to each target."""
    speeds = fastest(results, model), cheapest(results, model), efficient(results, model), knee(results, model)
    return (*speeds, *soonest(results, model))


def soonest(results: Results, model: str) -> tuple[Card, ...]:
    """Of trainings to a result: seconds of training to each of the model's targets (to_target/ties.py)."""
    rows = to_target.table(results)
    ours = rows[(rows.model == model) & (rows.target != "")]
    return tuple(_soonest(str(target), group) for target, group in ours.groupby("target", sort=False))


def _soonest(target: str, group: pd.DataFrame) -> Card:
    label, best = SOONEST + target, group[group.soonest == ties.BEST]
    if best.empty:
        return Card(label, "", note="no configuration reached it with three seeds or more")
    first, alike = best.iloc[0], group[group.soonest == ties.TIED]
    names = [_at_global_batch(row) for row in as_rows(alike)]
    more = [f"and {len(names) - MOST_ALIKE} more"] if len(names) > MOST_ALIKE else []
    low, high = number(first.seconds_to_target_low), number(first.seconds_to_target_high)
    return Card(
        label, f"{number(first.seconds_to_target)} s of training", f"95 %: {low} to {high}, {first.reached} seeds",
        _at_global_batch(first), (*names[:MOST_ALIKE], *more), "evaluation and checkpoints apart", tied=len(names),
    )  # fmt: skip


def _at_global_batch(row: Any) -> str:
    return f"{row['series']}, global batch {row['global_batch']}"


def fastest(results: Results, model: str) -> Card:
    kind = unit(results.frame_of(model))
    return _ranked(results, model, "fastest", "samples_per_second", number, f" {kind}/s")


def efficient(results: Results, model: str) -> Card:
    card = _ranked(results, model, "best efficiency", "efficiency", lambda value: f"{100 * value:.0f}", " %")
    if card.value:
        return card
    why = "no configuration of more than one worker has a speed-up"
    return Card(card.label, "", note=why if results.study.baseline is not None else "the study declares no baseline")


def cheapest(results: Results, model: str) -> Card:
    """In money where every worker has a price; else in worker-hours, and says so."""
    ours = [point.of for point in pareto.points(results, model)]
    prices = {priced.price for priced in ours}
    if len(prices) > 1:  # a ratio of throughputs is then not one of costs
        return _cheapest_of_several(ours)
    price = prices.pop() if prices else None
    cost_text = partial(_cost, price=price)
    unit_of = " worker-hours" if price is None else ""
    card = _ranked(results, model, CHEAPEST, "samples_per_worker_second", cost_text, unit_of)
    if not card.value:
        return card
    why = (
        f"at {number(price)} a worker-hour"
        if price is not None
        else "no price is set (`price_per_worker_hour` in a machine file): every worker is assumed to cost the same"
    )
    return replace(card, note="; ".join(filter(None, (why, card.note))))


def _cost(rate: float, price: float | None) -> str:
    """Of a million samples at `rate` samples a second and worker."""
    return number((1.0 if price is None else price) * cost.SAMPLES / 3600 / rate)


def _cheapest_of_several(ours: list[cost.Cost]) -> Card:
    best = cost.cheapest(ours)
    if best is None:
        return Card(CHEAPEST, "", note="no comparable configuration was measured")
    value = number(best.money) if best.money is not None else f"{number(best.worker_hours)} worker-hours"
    interval = "" if best.bounds is None else f"95 %: {number(best.bounds[0])} to {number(best.bounds[1])}"
    why = "workers have different prices: ties were not computed"
    return Card(CHEAPEST, value, interval, name_of(best.row), (), why)


def knee(results: Results, model: str) -> Card:
    """Of the family that the fastest configuration is in, else of the first that has a law."""
    label = f"knee at {100 * SHARE:.0f} %"
    top = _top(results, model, "samples_per_second")
    returns = [
        (extrapolation, at) for extrapolation, _, at in extrapolated(results) if extrapolation.family.model == model
    ]
    for extrapolation, at in sorted(returns, key=lambda pair: not _holds(pair[0], top)):
        value, _, bounds = at.text.partition(" [")
        interval = f"95 %: {bounds.removesuffix(']').replace(', ', ' to ')}" if bounds else ""
        why = f"beyond it the marginal efficiency of a worker is below {100 * at.share:.0f} %"
        if at.workers >= at.looked:
            why = f"no knee up to here: the marginal efficiency of every worker is {100 * at.share:.0f} % or more"
        return Card(label, value, interval, extrapolation.family.label, (), why)
    return Card(label, "", note=_no_knee(results, model))


def _no_knee(results: Results, model: str) -> str:
    """Why there is none, and the marginal efficiencies that were measured."""
    ours = [comparison for comparison in comparisons(results) if comparison.family.model == model]
    for priced in ours:
        if priced.why:
            steps = [_marginal(step) for step in returns(priced.family)]
            return f"{priced.why} ({priced.family.label})" + (f"; measured: {'; '.join(steps)}" if steps else "")
    return "no configuration was measured at several worker counts, all else equal"


def _marginal(step: Returned) -> str:
    """`marginal efficiency of the second worker: 98 %`; `of workers 3 to 4`."""
    which = f"workers {step.before + 1} to {step.after}" if step.after - step.before > 1 else f"worker {step.after}"
    which = "the second worker" if (step.before, step.after) == (1, 2) else which
    return f"marginal efficiency of {which}: {100 * step.share:.0f} %"


def name_of(row: Row) -> str:
    """`horovod, 2 workers, fp16, batch 64`."""
    return f"{row['series']}, batch {row['batch']}"


def _ranked(results: Results, model: str, label: str, by: str, text_of: Callable[[float], str], unit_of: str) -> Card:
    """`said`: the value in words, without its unit."""
    top = _top(results, model, by)
    if top is None:
        return Card(label, "", note="no comparable configuration was measured")
    names = {row["configuration"]: name_of(row) for row in results.rows}
    alike = [names[name] for name in top["indistinguishable"]]
    more = [f"and {len(alike) - MOST_ALIKE} more"] if len(alike) > MOST_ALIKE else []
    lone = len(top["without_interval"])
    low, high = (text_of(top[f"value_{end}"]) if known(top[f"value_{end}"]) else "" for end in ("low", "high"))
    if by == "samples_per_worker_second":  # the more samples, the less they cost
        low, high = high, low
    interval = f"95 %: {low} to {high}, {top['n']} repeats" if low else f"no interval: n = {top['n']}"
    why = [f"{lone} other{'s' * (lone != 1)} not ranked (fewer than 3 repeats)"] if lone else []
    why += [f"among {top['work']}: the model's other rows do different work"] if top["work"] else []
    return Card(
        label, text_of(top["value"]) + unit_of, interval, name_of(top),
        (*alike[:MOST_ALIKE], *more), "; ".join(why), lone,
        len(alike),
    )  # fmt: skip


def _top(results: Results, model: str, by: str) -> Row | None:
    best = ranking.best(results, by)
    ours = as_rows(best[best.model == model])
    return ours[0] if ours else None


def _holds(compared: Comparison, top: Row | None) -> bool:
    return top is not None and any(row["configuration"] == top["configuration"] for row in compared.family.rows)


def precision(results: Results) -> str:
    """What the intervals are too wide for; empty where every one reaches the study's target."""
    asked, target = widths(results), results.study.target_interval
    claimed = [width.half for width in asked if not math.isnan(width.half)]
    if not claimed:
        return "No interval is claimed: every configuration has fewer than 3 repeats."
    wide = sum(half > target for half in claimed)
    if not wide:
        return ""
    return (
        f"But {wide} of {len(asked)} intervals{said_of(asked)} are wider than the target of "
        f"±{100 * target:.2g} % (median ±{100 * median(claimed):.2g} %, widest ±{100 * max(claimed):.2g} %): smaller "
        "differences are not resolved."
    )


def source(results: Results) -> str:
    return notes.source(results)
