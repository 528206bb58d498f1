"""Pipelines whose truth is known: orders written down by their rules, timelines simulated from them, records of both.

The simulation here relaxes start times until nothing moves, so that it shares no idea with
analysis/statistics/bubble.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from planted import Planted, plant, record

from analysis.statistics import bubble
from scaling_study.records.schema import Phases, RankReport, Record, StageRecord
from scaling_study.records.store import write_record

Event = tuple[str, int, int]  # kind, stage, micro-batch
Order = dict[int, list[Event]]
F, B, I, W = "forward", "backward", "backward_input", "backward_weight"  # noqa: E741


def gpipe(p: int, m: int) -> Order:
    return {w: [(F, w, i) for i in range(m)] + [(B, w, i) for i in range(m)] for w in range(p)}


def one_f_one_b(p: int, m: int) -> Order:
    """p - 1 - w forwards ahead on worker w, then one of each in turns."""
    made: Order = {}
    for w in range(p):
        ahead = min(p - 1 - w, m)
        steady = [event for i in range(m - ahead) for event in ((F, w, ahead + i), (B, w, i))]
        made[w] = [(F, w, i) for i in range(ahead)] + steady + [(B, w, i) for i in range(m - ahead, m)]
    return made


def looped(p: int, m: int, v: int = 2) -> Order:
    """Breadth first: all micro-batches of a worker's first stage, then all of its next."""
    stages = {w: [w + p * k for k in range(v)] for w in range(p)}
    return {
        w: [(F, s, i) for s in stages[w] for i in range(m)] + [(B, s, i) for s in reversed(stages[w]) for i in range(m)]
        for w in range(p)
    }


def split(order: Order) -> Order:
    """Every backward in its two halves, the weights' after all else of the worker."""
    made = {}
    for w, events in order.items():
        made[w] = [(I, s, i) if kind == B else (kind, s, i) for kind, s, i in events]
        made[w] += [(W, s, i) for kind, s, i in events if kind == B]
    return made


def events(order: Order) -> dict[int, list[bubble.Event]]:
    """As an order is replayed."""
    return {worker: [bubble.Event(*event) for event in ours] for worker, ours in order.items()}


def simulated(
    order: Order, seconds: Callable[[str, int], float], transfer: float = 0.0
) -> dict[tuple[int, Event], tuple[float, float]]:
    """(worker, event) -> (start, end), with a transfer between two workers that takes so long."""
    home = {(kind, s, i): w for w, events in order.items() for kind, s, i in events}
    start = {(w, event): 0.0 for w, events in order.items() for event in events}

    def end(w: int, event: Event) -> float:
        return start[w, event] + seconds(event[0], event[1])

    moved = True
    while moved:
        moved = False
        for w, events in order.items():
            for index, event in enumerate(events):
                earliest = [end(w, events[index - 1])] if index else [0.0]
                for need in dependencies(event, home):
                    earliest.append(end(home[need], need) + transfer * (home[need] != w))
                if max(earliest) > start[w, event] + 1e-12:
                    start[w, event], moved = max(earliest), True
    return {key: (begin, end(*key)) for key, begin in start.items()}


def dependencies(event: Event, home: Mapping[Event, int]) -> list[Event]:
    kind, s, i = event
    wanted = {F: [(F, s - 1, i)], W: [(I, s, i)]}.get(kind, [(F, s, i), (B, s + 1, i), (I, s + 1, i)])
    return [need for need in wanted if need in home]


@dataclass(frozen=True)
class Pipeline:
    """One configuration: its keys, and how long each stage takes."""

    schedule: str | None = "gpipe"
    p: int = 2
    m: int = 4
    v: int = 1
    replicas: int = 1
    stage_cut: str = "even"
    shares: Sequence[float] = ()  # of the time, of each stage; equal where none are given
    transfer: float = 0.0  # seconds
    framework: str = "torch_pipeline"
    model: str = "transformer_lm"
    batch: int = 16
    speed: float | None = 100.0
    status: str = "ok"
    repeats: int = 3
    steps: int = 3  # instrumented
    notes: tuple[str, ...] = ()
    keys: tuple[tuple[str, Any], ...] = ()
    update: float | None = None  # seconds of each rank's; with it phases are those of the timeline, which see
    waits_in: str | None = (
        "optimizer"  # phase of what needs all stages; None: nothing does, and nobody waits in a phase
    )
    timed: bool = True  # whether its records have timelines

    @property
    def order(self) -> Order:
        made = {"1f1b": one_f_one_b(self.p, self.m), "looped_bfs": looped(self.p, self.m, self.v)}
        whole = gpipe(self.p, self.m)
        return split(whole) if self.schedule == "interleaved_zero_bubble" else made.get(str(self.schedule), whole)

    def seconds(self, kind: str, stage: int) -> float:
        share = self.shares[stage] if self.shares else 1 / (self.p * self.v)
        return 0.06 / self.m * share * {F: 1, B: 2, I: 1, W: 1}[kind]

    @property
    def planted(self) -> Planted:
        keys: dict[str, Any] = {"stages": self.p, "stage_cut": self.stage_cut}
        if self.framework != "naive_model_parallel":
            keys |= {"micro_batches": self.m}
        if self.framework == "torch_pipeline":
            keys |= {"schedule": self.schedule, "virtual_stages": self.v, "replicas": self.replicas}
        return Planted(
            self.framework, self.model, self.batch, self.p * self.replicas, "fp32" if self.replicas > 1 else "none",
            self.speed, self.status, repeats=self.repeats, keys=(*keys.items(), *self.keys), tokens=35,
        )  # fmt: skip


def report(one: Pipeline, rank: RankReport) -> RankReport:
    """What a rank of this pipeline says beside what every rank does."""
    ran = simulated(one.order, one.seconds, one.transfer)
    alone = one.framework == "fairscale_pipe"
    replica, worker = divmod(rank.rank, one.p)
    mine = range(one.p * one.v) if alone else sorted({event[1] for event in one.order[worker]})
    timeline = [
        [step, *event, start + 0.2 * step + 0.001 * replica, end + 0.2 * step + 0.001 * replica]
        for step in range(one.steps)
        for (w, event), (start, end) in ran.items()
        if alone or w == worker
    ]
    stages = [
        StageRecord(s, one.p * one.v, [f"layers.{s}"], 100 * (s + 1), 10 if one.waits_in == "communication" else 0)
        for s in mine
    ]
    last = one.p * one.v - 1 in mine
    if one.update is not None:
        rank = replace(rank, phases=phases_of(one, worker, ran))
    return replace(
        rank, stages=stages, timeline=timeline if one.timed else [],
        memory={"activations": 1_000_000 * (worker + 1)}, notes=list(one.notes),
        samples_per_step=rank.samples_per_step * last, samples_seen=rank.samples_seen * last,
        tokens_seen=35 * rank.samples_seen * last, communication_bytes={"send": 4_000_000},
    )  # fmt: skip


def phases_of(one: Pipeline, worker: int, ran: Mapping[tuple[int, Event], tuple[float, float]]) -> Phases:
    """A worker's: its events, waiting between them in no phase, and behind its last one in `waits_in`."""
    update = one.update or 0.0
    step = max(end for _, end in ran.values()) + update
    alone = one.framework == "fairscale_pipe"
    mine = {event: span for (w, event), span in ran.items() if w == worker}
    took = [sum(end - start for (kind, *_), (start, end) in mine.items() if (kind == F) is so) for so in (True, False)]
    if alone:  # one process that waits for its devices: all of it is forward or backward
        turn = max(end for (_, (kind, *_)), (_, end) in ran.items() if kind == F)
        took = [turn, step - update - turn]
    tail = step - update - max(end for _, end in mine.values())
    waited = {one.waits_in: tail} if one.waits_in and not alone else {}
    spent = {"optimizer": update + waited.pop("optimizer", 0.0), "communication": waited.pop("communication", 0.0)}
    rest = step - sum(took) - sum(spent.values())
    seconds = {f"{name}_seconds": value for name, value in spent.items()}
    return Phases(4, step, 0.0, *took, unattributed_seconds=rest, **seconds)


def pipeline_record(one: Pipeline, repeat: int, rng: np.random.Generator) -> Record:
    trial = one.planted.trial(repeat)
    speed = None if one.status != "ok" or one.speed is None else one.speed * (1 + 0.01 * rng.standard_normal())
    made = record(one.planted, trial, speed, "planted", rng)
    ranks = [report(one, rank) for rank in made.ranks[: trial.processes]]
    return replace(made, ranks=ranks)


def plant_pipelines(folder: Path, pipelines: Iterable[Pipeline], others: Iterable[Planted] = (), **about: Any) -> Path:
    """A results folder of these, and of what plant() makes of the others."""
    plant(folder, others, **about)
    rng = np.random.default_rng(0)
    for one, repeat in itertools.chain.from_iterable(
        itertools.product([one], range(1, one.repeats + 1)) for one in pipelines
    ):
        made = pipeline_record(one, repeat, rng)
        write_record(folder / "trials" / made.id, made)
    return folder
