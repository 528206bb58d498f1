"""The bubble of a pipeline: measured, in closed form, and replayed with durations of our choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from analysis.frames.details import BACKWARD, FORWARD, INPUT, WEIGHT

NAIVE = "naive"  # stages one after the other, the batch in one piece
IN_LOCKSTEP = (NAIVE, "gpipe")  # all forwards, then all backwards


@dataclass(frozen=True)
class Theory:
    """The bubble, 0 to 1, or None with the reason why none is claimed; by which formula, and whose."""

    bubble: float | None
    formula: str
    why: str = ""


def bubble(schedule: str, p: int, m: int, v: int = 1) -> Theory:
    """The bubble of a schedule (frameworks.SCHEDULES, or NAIVE) in closed form: the share of the makespan that workers
    are idle, of `p` workers along the pipeline with `v` stages each and `m` micro-batches.

    Stages take equally long, and transfers no time. Backward takes twice as long as forward; where it is split, the
    input's gradient as long as the weights'. Where a paper counts otherwise, or asks something of p, v and m, that is
    said.
    """
    match schedule:
        case "naive":
            return Theory((p - 1) / p, "(p-1)/p: one worker at a time, the case m = 1 of GPipe's")
        case "gpipe":
            return Theory((p - 1) / (m + p - 1), "(p-1)/(m+p-1) (Huang et al., arXiv 1811.06965)")
        case "1f1b":  # less memory than GPipe, and the same bubble
            return Theory((p - 1) / (m + p - 1), "(p-1)/(m+p-1), as GPipe's (Narayanan et al., arXiv 2104.04473)")
        case "interleaved_1f1b":  # the paper has m a multiple of p; torch's rounds of other sizes keep the form
            return _looped(p, m, v, "Narayanan et al., arXiv 2104.04473")
        case "looped_bfs":
            return _looped(p, m, v, "Lamy-Poirier, arXiv 2211.05953")
        case "interleaved_zero_bubble":  # with 1F1B's memory (p-1) (F + B_input - B_weight): here a third of 1F1B's
            formula = "ZB-H1: (p-1)/(3 v m+p-1) (Qi et al., arXiv 2401.10241)"
            return _needing(m >= p, f"m >= p: {m} is below {p}", (p - 1) / (3 * v * m + p - 1), formula)
        case "zbv_zero_bubble":  # no worker has a break, but worker i begins i forwards of one stage after the first
            formula = "ZB-V: (p-1)/(6 m+p-1), the fill alone (Qi et al., arXiv 2401.10241, who do not count it: zero)"
            need = f"m >= 2 p to be without a break: {m} is below {2 * p}"
            return _needing(m >= 2 * p, need, (p - 1) / (6 * m + p - 1), formula)
        case "dualpipev":  # their (p-1) (F&B + B - 3 W) with F&B = F + B. A pair hands on both results together, as
            # torch's do; an order replayed event by event hands each on at once, and has half the bubble.
            formula = "DualPipeV: (p-1)/(3 m+p-1), pairs in one piece, not overlapped (DeepSeek-AI, arXiv 2412.19437)"
            return _needing(m >= 2 * p, f"m >= 2 p: {m} is below {2 * p}", (p - 1) / (3 * m + p - 1), formula)
    return Theory(None, "", f"no closed form is known here for {schedule}")


def _looped(p: int, m: int, v: int, whose: str) -> Theory:
    """With m < p the first worker has done its micro-batches p - m units before they come round again, v - 1 times."""
    idle = p - 1 + (v - 1) * max(0, p - m)
    form = "(p-1)/(v m+p-1)" if m >= p else "i/(v m+i), i = p-1+(v-1)(p-m) as m < p"
    return Theory(idle / (v * m + idle), f"{form} ({whose})")


def _needing(met: bool, need: str, bubble: float, formula: str) -> Theory:
    return Theory(bubble, formula) if met else Theory(None, formula, f"it needs {need}")


def most_speedup(shares: Sequence[float]) -> float:
    """The most that any schedule can gain over one process: the busiest worker does its share of every sample.

    `shares`: of the time, one a worker. Raises ValueError where they are not between 0 and 1.
    """
    largest = max(shares, default=0.0)
    if not 0 < largest <= 1 + 1e-9:
        raise ValueError(f"shares of the time are between 0 and 1, not {list(shares)}")
    return 1 / largest


def cap(schedule: str, shares: Sequence[float], micro_batches: int) -> float:
    """The most that this schedule can gain over one process with this cut (F16).

    GPipe: the first micro-batch goes through every stage, 1 of its times; each further one waits for the slowest:
    m / (1 + (m-1) max s). 1F1B hides behind the slowest stage what comes after it, but not what comes before:
    m / max (m s_i + s_1 + ... + s_(i-1)). The others: 1 / max s.
    """
    most, m = most_speedup(shares), micro_batches
    if schedule in IN_LOCKSTEP:
        return m / (1 + (m - 1) * max(shares))
    if schedule == "1f1b":
        return m / max(m * share + sum(shares[:index]) for index, share in enumerate(shares))
    return most


# The order that was really run, run again on paper, as soon as what each event needs is there (`needs`). So a measured
# bubble falls into three parts:
#
#     measured = that order with equal stages          what its schedule costs: the theory
#              + what the stages' own seconds add      the cut is not balanced
#              + what is left                          transfers, waiting for each other, the framework itself


class Event(NamedTuple):
    kind: str  # one of events.KINDS
    stage: int
    micro_batch: int


class Ran(NamedTuple):
    event: Event
    worker: int
    start: float
    end: float


Order = Mapping[int, Sequence[Event]]  # worker -> what it runs, one after the other
Duration = Callable[[str, int], float]  # kind, stage -> how long
GRADIENT = "gradient"  # of a stage's input: there after backward, and after backward_input
GIVES = {FORWARD: FORWARD, BACKWARD: GRADIENT, INPUT: GRADIENT, WEIGHT: WEIGHT}
EQUAL = {FORWARD: 1.0, BACKWARD: 2.0, INPUT: 1.0, WEIGHT: 1.0}


def order_of(step: pd.DataFrame) -> dict[int, list[Event]]:
    """Worker -> the events that it ran in one step of one replica (details.Event), by their start."""
    sorted_ = step.sort_values(["start_seconds", "end_seconds"], kind="stable")
    return {
        int(str(worker)): [Event(*event) for event in zip(ours.kind, ours.stage, ours.micro_batch, strict=True)]
        for worker, ours in sorted_.groupby("worker")
    }


def equal(kind: str, stage: int) -> float:
    """Every stage alike: forward 1, backward 2, of which the input's gradient and the weights' are 1 each."""
    return EQUAL[kind]


def measured(events: pd.DataFrame) -> Duration:
    """The mean seconds of each kind on each stage, over all of `events`."""
    seconds = (events.end_seconds - events.start_seconds).groupby([events.kind, events.stage]).mean().to_dict()
    return lambda kind, stage: seconds[kind, stage]


def run(order: Order, duration: Duration) -> list[Ran]:
    """When each event would begin and end. Raises ValueError for an order that waits for ever."""
    last = max(event.stage for events in order.values() for event in events)
    waiting = {worker: list(reversed(events)) for worker, events in order.items()}
    free, there = dict.fromkeys(order, 0.0), dict[Event, float]()
    ran: list[Ran] = []
    while any(waiting.values()):
        before = len(ran)
        for worker, events in waiting.items():
            while events and all(need in there for need in needs(events[-1], last)):
                event = events.pop()
                start = max([free[worker], *(there[need] for need in needs(event, last))])
                end = free[worker] = start + duration(event.kind, event.stage)
                there[event._replace(kind=GIVES[event.kind])] = end
                ran.append(Ran(event, worker, start, end))
        if len(ran) == before:
            raise ValueError(_stuck(waiting, set(there), last))
    return ran


def _stuck(waiting: Mapping[int, Sequence[Event]], there: set[Event], last: int) -> str:
    """The message for an order that waits for ever: which worker waits for which event."""
    coming = {event._replace(kind=GIVES[event.kind]) for events in waiting.values() for event in events}
    heads = [(worker, events[-1]) for worker, events in waiting.items() if events]
    lost = [(*head, need) for head in heads for need in needs(head[1], last) if need not in there | coming]
    worker, event, *need = (lost or heads)[0]
    why = f"{' '.join(map(str, need[0]))} was never run" if need else "it stands before what it needs"
    return f"worker {worker} waits for ever with {' '.join(map(str, event))}: {why}"


def needs(event: Event, last: int) -> list[Event]:
    """The events that must have ended before this one can begin, by what they GIVE; `last` is the last stage."""
    kind, stage, micro_batch = event
    if kind == WEIGHT:
        return [Event(GRADIENT, stage, micro_batch)]
    if kind == FORWARD:
        return [Event(FORWARD, stage - 1, micro_batch)] if stage else []
    after = [Event(GRADIENT, stage + 1, micro_batch)] if stage < last else []
    return [Event(FORWARD, stage, micro_batch), *after]


def replay_bubble(order: Order, duration: Duration) -> float:
    """The bubble of an order with these durations. Raises ValueError as run() does."""
    ran = run(order, duration)
    makespan = max(work.end for work in ran) - min(work.start for work in ran)
    return 1 - sum(work.end - work.start for work in ran) / (len(order) * makespan)


# The bubble as it was measured: the share of a step's worker-seconds in which no event was under way.
#
#     worker 0   F0 F1 F2 F3 .  .  B0 B1 B2 B3      bubble = 1 - busy / (workers x makespan)
#     worker 1   .  F0 F1 F2 F3 B0 B1 B2 B3 .       makespan: from the first event's start to the last one's end
#
# The step's own beginning and end (the batch, the optimiser) are outside: every schedule has them alike.

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
    """COLUMNS: one row a step of one replica. `events` (details.Event) of one configuration; `workers` a replica."""
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

    `events` (details.Event) of any configurations. Of each the sum over the ranks is that of `of_steps`.
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
