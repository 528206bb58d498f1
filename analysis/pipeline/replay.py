"""The order that was really run, run again on paper: with durations of our choice, and transfers that take no time.

Each worker does its events in its own order, as soon as what they need is there:

    forward of stage s           the forward of stage s - 1
    backward of stage s          its own forward, and the backward (or backward_input) of stage s + 1
    backward_weight of stage s   its own backward_input

all of the same micro-batch. So a measured bubble falls into three parts:

    measured = that order with equal stages          what its schedule costs: the theory
             + what the stages' own seconds add      the cut is not balanced
             + what is left                          transfers, waiting for each other, the framework itself
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from analysis.frames.timeline import BACKWARD, FORWARD, INPUT, WEIGHT


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
    """What each worker ran in one step of one replica (events.COLUMNS), in the order in which it began."""
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
    """Who waits for what: for something that never ran, if anybody does."""
    coming = {event._replace(kind=GIVES[event.kind]) for events in waiting.values() for event in events}
    heads = [(worker, events[-1]) for worker, events in waiting.items() if events]
    for worker, event in heads:
        for need in needs(event, last):
            if need not in there | coming:
                return f"worker {worker} waits for ever with {said(event)}: {said(need)} was never run"
    worker, event = heads[0]
    return f"worker {worker} waits for ever with {said(event)}: it stands before what it needs"


def said(event: Event) -> str:
    """`forward 2 5`: kind, stage, micro-batch."""
    return " ".join(map(str, event))


def needs(event: Event, last: int) -> list[Event]:
    """What must be there before an event can begin, by what it GIVES; `last` is the last stage."""
    kind, stage, micro_batch = event
    if kind == WEIGHT:
        return [Event(GRADIENT, stage, micro_batch)]
    if kind == FORWARD:
        return [Event(FORWARD, stage - 1, micro_batch)] if stage else []
    after = [Event(GRADIENT, stage + 1, micro_batch)] if stage < last else []
    return [Event(FORWARD, stage, micro_batch), *after]


def bubble(order: Order, duration: Duration) -> float:
    """The bubble of an order with these durations. Raises ValueError as run() does."""
    ran = run(order, duration)
    makespan = max(work.end for work in ran) - min(work.start for work in ran)
    return 1 - sum(work.end - work.start for work in ran) / (len(order) * makespan)
