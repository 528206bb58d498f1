"""The bubble as it was measured: the share of a step's worker-seconds in which no event was under way.

    worker 0   F0 F1 F2 F3 .  .  B0 B1 B2 B3      bubble = 1 - busy / (workers x makespan)
    worker 1   .  F0 F1 F2 F3 B0 B1 B2 B3 .       makespan: from the first event's start to the last one's end

The step's own beginning and end (the batch, the optimiser) are outside: every schedule has them alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

STEP = ["repeat", "replica", "step"]  # what one makespan is measured over
RANK = ["configuration", "repeat", "rank"]
COLUMNS = (*STEP, "makespan_seconds", "busy_seconds", "bubble")


@dataclass(frozen=True)
class Bubble:
    """Mean over all instrumented steps of all repeats and replicas, the smallest and the largest of them."""

    mean: float
    low: float
    high: float
    steps: int


def of_steps(events: pd.DataFrame, workers: int) -> pd.DataFrame:
    """COLUMNS: one row a step of one replica. `events` (events.COLUMNS) of one configuration; `workers` a replica."""
    steps = []
    for key, step in events.groupby(STEP, sort=True):
        makespan = float(step.end_seconds.max() - step.start_seconds.min())
        busy = sum(
            busy_seconds(zip(ours.start_seconds, ours.end_seconds, strict=True)) for _, ours in step.groupby("worker")
        )
        idle = 1 - busy / (workers * makespan) if makespan > 0 else 0.0
        steps.append((*(key if isinstance(key, tuple) else (key,)), makespan, busy, idle))
    return pd.DataFrame(steps, columns=list(COLUMNS))


def idle_seconds(events: pd.DataFrame) -> pd.Series[float]:
    """RANK -> seconds of a step's makespan in which its workers did nothing: mean over its workers and over the steps.

    `events` (events.COLUMNS) of any configurations. Of each the sum over the ranks is that of `of_steps`.
    """
    step = ["configuration", *STEP]
    worker = [*step, "worker", "rank"]
    ordered = events.sort_values([*worker, "start_seconds"], kind="stable")
    ordered["until"] = ordered.groupby(worker).end_seconds.cummax()
    before = ordered.groupby(worker).until.shift(fill_value=-math.inf)  # busy_seconds(), of all workers at once
    ordered["busy"] = (ordered.end_seconds - ordered.start_seconds.clip(lower=before)).clip(lower=0.0)
    spans = ordered.groupby(step, as_index=False).agg(start=("start_seconds", "min"), end=("end_seconds", "max"))
    each = ordered.groupby(worker, as_index=False).busy.sum().merge(spans, on=step)
    each["idle"] = each.end - each.start - each.busy
    idle: pd.Series[float] = each.groupby(RANK).idle.mean()
    return idle


def mean(steps: pd.DataFrame) -> Bubble:
    """The bubble of `of_steps`, which must not be empty."""
    of = steps.bubble
    return Bubble(float(of.mean()), float(of.min()), float(of.max()), len(of))


def busy_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of these (start, end): two events at once keep a worker busy once."""
    total, until = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def median_step(events: pd.DataFrame) -> pd.DataFrame:
    """The events of the step to show: of the first repeat's first replica, the median one by makespan."""
    first = events[events.repeat == events.repeat.min()]
    first = first[first.replica == first.replica.min()]
    span = first.groupby("step").end_seconds.max() - first.groupby("step").start_seconds.min()
    middle = span.sort_values(kind="stable").index[(len(span) - 1) // 2]
    shown: pd.DataFrame = first[first.step == middle]
    return shown.sort_values(["worker", "start_seconds"], kind="stable", ignore_index=True)
