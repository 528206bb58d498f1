"""Up to how many workers it pays: the worker counts with the fewest seconds, and worker-hours, to the target.

Seconds are samples to the target over samples a second, so the highest goodput is the fewest seconds. Only worker
counts that were trained compete, each with its best global batch. Tied is what may be the best at 95 % for all at once
(Bonferroni over the others); where two have the same global batch, only their throughputs tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.frames.baseline import SPREADING_KEYS, values_of
from analysis.statistics import log_estimates
from analysis.statistics.log_estimates import LogEstimate
from analysis.to_target.recipes import SPEED_KEYS, Recipe, Trained

ALONE = "single"  # the one worker of a framework that has no run of its own with one
WAY_KEYS = tuple(key for key in SPREADING_KEYS if key not in ("workers", "hosts", "allreduce", "launcher"))
FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class Best:
    """`tied`: other worker counts that may be as good; `unsure`: those of which too few seeds tell."""

    of: Trained
    tied: tuple[int, ...]
    unsure: tuple[int, ...]


@dataclass(frozen=True)
class Paying:
    """Of one framework: the best by seconds, by worker-hours, and by throughput alone."""

    framework: str
    seconds: Best
    hours: Best
    throughput: Trained


def paying(recipe: Recipe) -> Iterator[Paying]:
    """For each way of sharing the work that was trained with, or beside, another number of workers."""
    there = [one for one in (*recipe.trained, *recipe.borrowed) if one.batch in recipe.samples]
    ways: dict[tuple[Any, ...], list[Trained]] = {}
    for one in there:
        if one.row["framework"] != ALONE:
            ways.setdefault(values_of(one.row, (*WAY_KEYS, *SPEED_KEYS)), []).append(one)
    for ours in ways.values():
        if all(int(one.row["workers"]) > 1 for one in ours):
            speed = values_of(ours[0].row, SPEED_KEYS)
            alone = [one for one in there if one.row["framework"] == ALONE]
            ours = [*(one for one in alone if values_of(one.row, SPEED_KEYS) == speed), *ours]
        if len({int(one.row["workers"]) for one in ours}) > 1:
            fastest = max(ours, key=lambda one: one.speed.log)
            by_seconds, by_hours = (_best(ours, recipe, priced) for priced in (False, True))
            yield Paying(str(ours[-1].row["framework"]), by_seconds, by_hours, fastest)


def _best(ours: Sequence[Trained], recipe: Recipe, priced: bool) -> Best:
    """`priced`: each second costs as much as there are workers."""

    def cost(one: Trained) -> float:
        return _cost(one, recipe, priced).value

    best = min(ours, key=cost)
    others = [one for one in ours if one.row["workers"] != best.row["workers"]]
    confidence = 1 - FALSE_ALARMS / max(1, len(others))
    tied, unsure = set[int](), set[int]()
    for one in others:
        low, _ = _ratio(one, best, recipe, priced).bounds(confidence)
        if low is None:
            unsure.add(int(one.row["workers"]))
        elif low <= 1:
            tied.add(int(one.row["workers"]))
    return Best(best, tuple(sorted(tied)), tuple(sorted(unsure - tied)))


def _cost(one: Trained, recipe: Recipe, priced: bool) -> LogEstimate:
    return recipe.samples[one.batch] / one.speed * _price(one, priced)


def _ratio(one: Trained, other: Trained, recipe: Recipe, priced: bool) -> LogEstimate:
    """What `one` costs, over what `other` does."""
    if one.batch == other.batch:
        return other.speed / one.speed * (_price(one, priced) / _price(other, priced))
    return _cost(one, recipe, priced) / _cost(other, recipe, priced)


def _price(one: Trained, priced: bool) -> LogEstimate:
    return log_estimates.exactly(float(one.row["workers"]) if priced else 1.0)
