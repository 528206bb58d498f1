"""Facts of records that results.csv has no column for, as frames: timelines, stages, epochs, blocks, step times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.frames import measured as rounds
from analysis.frames import training
from analysis.frames.measured import PHASES, communicator
from analysis.frames.rows import frame_of
from analysis.frames.training import Training
from scaling_study.errors import printable
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records.store import RankReport, Record
from scaling_study.stats.intervals import within_run
from scaling_study.stats.launches import together
from scaling_study.stats.network import COLLECTIVES

# Blocks of launches that configurations took turns in: a row for each, with the mean and the scatter of its steps.

Row = tuple[Any, ...]


class Block(NamedTuple):
    configuration: str
    repeat: int
    together: str  # all that were alive at once
    round: int
    at: float  # Unix time at which it began
    steps: int
    log_seconds: float  # of the mean step on the slowest rank
    step_variance: float | None  # of its steps, relative to that mean; None of a single one


def block_rows(record: Record) -> list[Row]:
    """A row of Block for each; none of a trial that had its launch to itself. Raises where the record is not whole."""
    if not (record.launch and record.ranks):
        return []
    slowest = max(record.ranks, key=lambda rank: rank.window_seconds)
    seconds, start, found = np.asarray(slowest.step_seconds, dtype=np.float64), 0, list[Row]()
    counts = [block.steps for block in slowest.blocks]
    if counts and (min(counts) < 1 or sum(counts) != len(seconds)):
        raise ValueError(f"blocks of {counts} steps are not its {len(seconds)}")
    who = (printable(record.configuration), record.trial.repeat, together(record.launch))
    for block, count in zip(slowest.blocks, counts, strict=True):
        steps = seconds[start : start + count]
        start += count
        mean = float(steps.mean())
        scatter = float(steps.var(ddof=1)) / mean**2 if len(steps) > 1 else None
        at = block.at or math.nan
        found.append((*who, block.round, at, len(steps), math.log(mean), scatter))
    return found


# A probe's record as rows: one for each collective, size and state of the cores.
#
# A call has taken as long as its slowest rank: the ranks' seconds are folded call by call, before any mean.


class Probe(NamedTuple):
    configuration: str
    repeat: int
    collective: str
    busy: bool
    bytes: int
    calls: int
    seconds: float  # mean of a call, then its interval within the run, the fastest and the slowest call
    seconds_low: float | None
    seconds_high: float | None
    seconds_min: float
    seconds_max: float


def probe_rows(record: Record) -> list[Row]:
    """Rows of Probe. Raises KeyError, TypeError or ValueError for what is not whole."""
    return [_row(record, index) for index in range(len(record.ranks[0].network))] if record.ranks else []


def _row(record: Record, index: int) -> Row:
    ours = [rank.network[index] for rank in record.ranks]
    calls = [max(each) for each in zip(*(row.seconds for row in ours), strict=True)]
    first, mean = ours[0], within_run(calls)
    if first.collective not in COLLECTIVES or mean.mean <= 0:
        raise ValueError(f"row {index} of the network is of no collective, or took no time")
    return (
        printable(record.configuration),
        record.trial.repeat,
        first.collective,
        first.busy,
        first.bytes,
        len(calls),
        mean.mean,
        mean.low,
        mean.high,
        min(calls),
        max(calls),
    )


# Times of each rank's steps by phase, and the peaks of its device: one row a rank.
#
#     seconds of its phases, of a timed and of an instrumented step; FLOPs of a sample; its device's measured peaks;
#     what its worker costs
#
# Ranks are kept apart because waiting for the slowest is only seen between them.

PHASE_COLUMNS = tuple(f"{name}_seconds" for name in PHASES)


class Rank(NamedTuple):
    """One rank of a trial: step times, phases and device peaks. None: not known."""

    configuration: str
    repeat: int
    rank: int
    step_seconds: float | None  # mean of its timed steps
    instrumented_seconds: float | None  # of those whose phases were timed
    data_seconds: float | None
    forward_seconds: float | None
    backward_seconds: float | None
    communication_seconds: float | None
    matchmaking_seconds: float | None
    averaging_seconds: float | None
    optimizer_seconds: float | None
    unattributed_seconds: float | None
    forward_flops_per_sample: float | None
    peak_flops_per_second: float | None
    peak_bytes_per_second: float | None
    tf32: float | None
    price_per_worker_hour: float | None


def rank_rows(record: Record) -> list[Row]:
    """A row of Rank for each."""
    who, price = (printable(record.configuration), record.trial.repeat), _price(record.machine_file)
    return [
        (
            *who,
            rank.rank,
            rank.window_seconds / len(rank.step_seconds) if rank.step_seconds else None,
            *(
                (None,) * (1 + len(PHASES))
                if rank.phases is None
                else (rank.phases.step_seconds, *(getattr(rank.phases, name) for name in PHASE_COLUMNS))
            ),
            rank.forward_flops_per_sample,
            rank.peak_flops_per_second,
            rank.peak_bytes_per_second,
            rank.tf32,
            price,
        )
        for rank in record.ranks
    ]


def _price(machine_file: dict[str, Any]) -> float | None:
    """The price of a worker for an hour, from its machine file; None where that gives none, or no usable one."""
    price = machine_file.get("price_per_worker_hour")
    usable = isinstance(price, int | float) and not isinstance(price, bool) and math.isfinite(price) and price >= 0
    return float(price) if usable else None  # type: ignore[arg-type]


# Facts about how a trial was run that no column of results.csv holds: one row a trial.
#
# warm-up steps, the first timed step, cores, threads, the learning rate it had, the size of its epoch,
# whose collectives it used, units of a sharded model, timed steps that were left out, the program's and the
# libraries' versions, and what a run that was trained to a result says of that training (training.py)


class Fact(NamedTuple):
    """Facts about how a trial ran. None: not known. Numbers are as the record has them."""

    configuration: str
    repeat: int
    warmup_steps: int
    first_step: float | None  # seconds of rank 0's first timed step over the median of its steps
    cores: tuple[int, int]  # fewest and most over the ranks; 0 where nothing is pinned
    threads: tuple[int, int]
    learning_rate: float | None
    samples_per_epoch: int
    communicator: str
    units: int | None
    skipped_steps: int | None
    commit: str
    versions: str
    training: tuple[Training, ...]  # of each rank; empty where there is none


def fact_rows(record: Record) -> list[Row]:
    """A row of Fact for a trial that trained; none for any other. Raises as Training.of does."""
    ranks = record.ranks
    if not ranks or sum(rank.samples_per_step for rank in ranks) == 0:
        return []
    steps = ranks[0].step_seconds
    usual = median(ranks[0].ordered_seconds) if steps else 0.0
    cores, threads = [len(rank.cores) for rank in ranks], [rank.threads for rank in ranks]
    rates = {rank.learning_rate for rank in ranks}
    about = ranks[0].backend
    units = about.get("units")
    trained = tuple(Training.of(rank.training) for rank in ranks if rank.training)
    return [
        (
            printable(record.configuration),
            record.trial.repeat,
            min(len(rank.warmup_seconds) for rank in ranks),
            steps[0] / usual if usual else None,
            (min(cores), max(cores)),
            (min(threads), max(threads)),
            rates.pop() if len(rates) == 1 else None,
            _epoch(record),
            communicator(ranks),
            units if isinstance(units, int) else None,
            max((rank.skipped_steps for rank in ranks if rank.skipped_steps is not None), default=None),
            printable(record.commit),
            _versions(ranks[0].versions),
            trained,
        )
    ]


def _epoch(record: Record) -> int:
    """Samples of all ranks in an epoch."""
    return max(r.steps_per_epoch for r in record.ranks) * sum(rank.samples_per_step for rank in record.ranks)


def _versions(installed: dict[str, str]) -> str:
    return ", ".join(f"{printable(name)} {printable(version)}" for name, version in sorted(installed.items()))


# How the timed steps of each run were spread: some order statistics of its slowest rank, whose window counts.
#
# Quantiles and not the samples: ten thousand runs of thousands of steps stay small. Every sample is in samples.npz.

QUANTILES = {"least": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "most": 1.0}


class StepTimes(NamedTuple):
    configuration: str
    repeat: int
    steps: int
    least_seconds: float
    p5_seconds: float
    p25_seconds: float
    p50_seconds: float
    p75_seconds: float
    p95_seconds: float
    p99_seconds: float
    most_seconds: float


def step_rows(record: Record) -> list[Row]:
    """A row of StepTimes; none of a run without timed steps. Quantiles are steps that there were, none in between."""
    slowest = max(record.ranks, key=lambda rank: rank.window_seconds).ordered_seconds if record.ranks else []
    if not slowest:
        return []
    last = len(slowest) - 1
    return [
        (
            printable(record.configuration),
            record.trial.repeat,
            len(slowest),
            *(slowest[round(share * last)] for share in QUANTILES.values()),
        )
    ]


# The timeline of a record as a frame: which worker did what, for which stage and micro-batch, from when to when.
#
#     rank's timeline   [0, "forward", 2, 5, 0.131, 0.140]
#     row               replica 0, worker 1, rank 1, step 0, forward, stage 2, micro-batch 5, 0.131 s, 0.140 s
#
# Ranks count along one replica after the other (scaling_study/stages/parts.py). Where one process drives all of its
# pipeline's devices, each stage is a worker. Records older than timelines have no rows.

FORWARD, BACKWARD, INPUT, WEIGHT = KINDS = ("forward", "backward", "backward_input", "backward_weight")


class Event(NamedTuple):
    configuration: str
    repeat: int
    replica: int
    worker: int
    rank: int
    step: int
    kind: str
    stage: int
    micro_batch: int
    start_seconds: float
    end_seconds: float


class Stage(NamedTuple):
    configuration: str
    repeat: int
    replica: int
    worker: int
    rank: int
    stage: int
    of: int
    layers: str
    parameters: int
    shared_parameters: float
    activations_bytes: float | None  # the peak of its rank, all its stages together


def event_rows(record: Record) -> list[Row]:
    """Rows of Event. What a rank notes in two pieces, one right after the other, is one: a forward and its loss.

    Raises ValueError for an event that is none."""
    events: list[Row] = []
    for rank in record.ranks:
        before: Row = ()
        for event in rank.timeline:
            step, kind, stage, micro_batch, start, end = event
            if kind not in KINDS or not start <= end:
                raise ValueError(f"rank {rank.rank} has an event that is none: {event}")
            row = (*_whose(record, rank, int(stage)), step, kind, stage, micro_batch)
            if row == before:
                start = events.pop()[-2]
            events.append((*row, start, end))
            before = row
    return events


def stage_rows(record: Record) -> list[Row]:
    """Rows of Stage: what each rank holds of the model."""
    return [
        (
            *_whose(record, rank, stage.stage),
            stage.stage,
            stage.of,
            printable(", ".join(stage.layers)),
            stage.parameters,
            stage.shared_parameters,
            rank.memory.get("activations"),
        )
        for rank in record.ranks
        for stage in rank.stages
    ]


def _whose(record: Record, rank: RankReport, stage: int) -> Row:
    workers = record.trial.stages or rank.world_size
    table = FRAMEWORKS.get(record.trial.framework)
    replica, worker = divmod(rank.rank, workers)
    if table is not None and table.one_process:
        worker = stage % workers
    return printable(record.configuration), record.trial.repeat, replica, worker, rank.rank


# Frames of what no column of results.csv could hold: timelines, stages, epochs, notes, step times, ...
#
# They cover every trial that is ok and is no gate. Each frame begins with its `configuration` and `repeat`.


class Epoch(NamedTuple):
    configuration: str
    repeat: int
    rank: int
    warmup: bool
    steps: int
    samples: int
    data_seconds: float
    training_seconds: float
    running_seconds: float
    learning_rate: float | None


class Note(NamedTuple):
    configuration: str
    repeat: int
    note: str


@dataclass(frozen=True)
class Rows:
    """The rows of one record."""

    events: list[Row]
    stages: list[Row]
    epochs: list[Row]
    notes: list[Row]
    network: list[Row]
    facts: list[Row]
    ranks: list[Row]
    steps: list[Row]
    trained: list[Row]
    evaluations: list[Row]
    noise: list[Row]
    rounds: list[Row]
    blocks: list[Row]


@dataclass(frozen=True)
class Details:
    """The frames of a study."""

    events: pd.DataFrame
    stages: pd.DataFrame
    epochs: pd.DataFrame
    notes: pd.DataFrame
    network: pd.DataFrame
    facts: pd.DataFrame
    ranks: pd.DataFrame
    steps: pd.DataFrame
    trained: pd.DataFrame
    evaluations: pd.DataFrame
    noise: pd.DataFrame
    rounds: pd.DataFrame
    blocks: pd.DataFrame


def details_of(record: Record) -> Rows:
    """Raises KeyError, TypeError or ValueError for what is not whole."""
    who = (printable(record.configuration), record.trial.repeat)
    epochs: list[Row] = [
        (
            *who,
            rank.rank,
            epoch.warmup,
            epoch.steps,
            epoch.samples,
            epoch.data_seconds,
            epoch.training_seconds,
            epoch.running_seconds,
            rank.learning_rate,
        )
        for rank in record.ranks
        for epoch in rank.epochs
    ]
    remarks = dict.fromkeys(note for rank in record.ranks for note in rank.notes)
    notes: list[Row] = [(*who, printable(note)) for note in remarks]
    staged = event_rows(record), stage_rows(record)
    measured = fact_rows(record), rank_rows(record), step_rows(record)
    learned = *training.trained_rows(record), training.noise_rows(record)
    return Rows(
        *staged, epochs, notes, probe_rows(record), *measured, *learned, rounds.round_rows(record), block_rows(record)
    )


def gathered(many: Iterable[Rows]) -> Details:
    """One frame of each kind, empty where no record has any."""
    every = list(many)
    rows = {f.name: [row for part in every for row in getattr(part, f.name)] for f in fields(Rows)}
    return Details(
        events=frame_of(Event, rows["events"]),
        stages=frame_of(Stage, rows["stages"]),
        epochs=frame_of(Epoch, rows["epochs"]),
        notes=frame_of(Note, rows["notes"]),
        network=frame_of(Probe, rows["network"]),
        facts=pd.DataFrame(rows["facts"], columns=list(Fact._fields), dtype=object),
        ranks=frame_of(Rank, rows["ranks"]),
        steps=frame_of(StepTimes, rows["steps"]),
        trained=training.trained_frame(rows["trained"], training.TRAINED_COLUMNS),
        evaluations=training.trained_frame(rows["evaluations"], training.EVALUATION_COLUMNS),
        noise=frame_of(training.Noise, rows["noise"]),
        rounds=frame_of(rounds.Round, rows["rounds"]),
        blocks=frame_of(Block, rows["blocks"]),
    )


def none() -> Details:
    return gathered([])
