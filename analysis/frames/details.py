"""Facts of records that results.csv has no column for, as frames: timelines, stages, epochs, blocks, step times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames import measured as rounds
from analysis.frames import training
from analysis.frames.measured import PHASES, communicator
from analysis.frames.rows import typed
from analysis.frames.training import Training
from scaling_study.errors import printable
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records.store import RankReport, Record
from scaling_study.stats.intervals import within_run
from scaling_study.stats.launches import together
from scaling_study.stats.network import COLLECTIVES

# Blocks of launches that configurations took turns in: a row for each, with the mean and the scatter of its steps.

# `together`: all that were alive at once. `at`: Unix time at which it began. `log_seconds`: of the mean step on the
# slowest rank. `step_variance`: of its steps, relative to that mean; None of a single one.
BLOCK_COLUMNS = ("configuration", "repeat", "together", "round", "at", "steps", "log_seconds", "step_variance")
Row = tuple[Any, ...]


def block_rows(record: Record) -> list[Row]:
    """Of COLUMNS; none of a trial that had its launch to itself. Raises for what is not whole."""
    if not (record.launch and record.ranks):
        return []
    slowest = max(record.ranks, key=lambda rank: rank.window_seconds)
    seconds, start, found = np.asarray(slowest.step_seconds, dtype=np.float64), 0, list[Row]()
    counts = [int(block["steps"]) for block in slowest.blocks]
    if counts and (min(counts) < 1 or sum(counts) != len(seconds)):
        raise ValueError(f"blocks of {counts} steps are not its {len(seconds)}")
    who = (printable(record.configuration), record.trial.repeat, together(record.launch))
    for block, count in zip(slowest.blocks, counts, strict=True):
        steps = seconds[start : start + count]
        start += count
        mean = float(steps.mean())
        scatter = float(steps.var(ddof=1)) / mean**2 if len(steps) > 1 else None
        at = float(block.get("at") or math.nan)
        found.append((*who, int(block["round"]), at, len(steps), math.log(mean), scatter))
    return found


def blocks_frame(rows: Iterable[Row]) -> pd.DataFrame:
    kinds = dict.fromkeys(BLOCK_COLUMNS) | dict.fromkeys(("repeat", "round", "steps"), "int64")
    kinds |= dict.fromkeys(("at", "log_seconds", "step_variance"), "float64")
    return typed(rows, kinds)


# A probe's record as rows: one for each collective, size and state of the cores.
#
# A call has taken as long as its slowest rank: the ranks' seconds are folded call by call, before any mean.

NetworkRow = tuple[object, ...]
SECONDS = ("seconds", "seconds_low", "seconds_high", "seconds_min", "seconds_max")
PROBE_COLUMNS = ("configuration", "repeat", "collective", "busy", "bytes", "calls", *SECONDS)


def probe_rows(record: Record) -> list[NetworkRow]:
    """COLUMNS, with the mean seconds of a call, its interval within the run, the fastest and the slowest call.

    Raises KeyError, TypeError or ValueError for what is not whole.
    """
    return [_row(record, index) for index in range(len(record.ranks[0].network))] if record.ranks else []


def probes_frame(rows: Sequence[NetworkRow]) -> pd.DataFrame:
    """COLUMNS, with types that do not depend on which rows there are."""
    kinds = dict.fromkeys(PROBE_COLUMNS) | dict.fromkeys(SECONDS, "float64")
    return typed(rows, kinds | {"repeat": "int64", "busy": "bool", "bytes": "int64", "calls": "int64"})


def _row(record: Record, index: int) -> NetworkRow:
    ours = [rank.network[index] for rank in record.ranks]
    calls = [max(map(float, each)) for each in zip(*(row["seconds"] for row in ours), strict=True)]
    first, mean = ours[0], within_run(calls)
    if first["collective"] not in COLLECTIVES or mean.mean <= 0:
        raise ValueError(f"row {index} of the network is of no collective, or took no time")
    return (
        *(printable(record.configuration), record.trial.repeat),
        *(first["collective"], bool(first["busy"]), int(first["bytes"]), len(calls)),
        *(mean.mean, mean.low, mean.high, min(calls), max(calls)),
    )


# What each rank's record says of where its steps went and of what its device can do: one row a rank.
#
#     seconds of its phases, of a timed and of an instrumented step; FLOPs of a sample; its device's measured peaks;
#     what its worker costs
#
# Ranks are kept apart because waiting for the slowest is only seen between them.

PHASE_COLUMNS = tuple(f"{name}_seconds" for name in PHASES)
NUMBERS = (
    *("step_seconds", "instrumented_seconds", *PHASE_COLUMNS),
    *("forward_flops_per_sample", "peak_flops_per_second", "peak_bytes_per_second", "tf32", "price_per_worker_hour"),
)
RANK_COLUMNS = ("configuration", "repeat", "rank", *NUMBERS)


def rank_rows(record: Record) -> list[Row]:
    """One row for each rank, in the order of COLUMNS; what is unknown is None.

    `step_seconds`: mean of its timed steps; `instrumented_seconds`: of those whose phases were timed.
    """
    who, price = (printable(record.configuration), record.trial.repeat), _price(record.machine_file)
    return [
        (
            *(*who, rank.rank, rank.window_seconds / len(rank.step_seconds) if rank.step_seconds else None),
            *((None,) * (1 + len(PHASES)) if rank.phases is None else (
                rank.phases.step_seconds, *(getattr(rank.phases, name) for name in PHASE_COLUMNS)
            )),
            *(rank.forward_flops_per_sample, rank.peak_flops_per_second, rank.peak_bytes_per_second, rank.tf32, price),
        )
        for rank in record.ranks
    ]  # fmt: skip


def ranks_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """COLUMNS, with types that do not depend on which rows there are."""
    kinds = dict.fromkeys(RANK_COLUMNS) | dict.fromkeys(("repeat", "rank"), "int64") | dict.fromkeys(NUMBERS, "float64")
    return typed(rows, kinds)


def _price(machine_file: dict[str, Any]) -> float | None:
    """What a worker costs for an hour, as its machine file said; None where it said nothing, or nothing usable."""
    price = machine_file.get("price_per_worker_hour")
    usable = isinstance(price, int | float) and not isinstance(price, bool) and math.isfinite(price) and price >= 0
    return float(price) if usable else None  # type: ignore[arg-type]


# What a record says of how its trial was run that no column of results.csv holds: one row a trial.
#
# warm-up steps, the first timed step, cores, threads, the learning rate it had, the size of its epoch,
# whose collectives it used, units of a sharded model, timed steps that were left out, the program's and the
# libraries' versions, and what a run that was trained to a result says of that training (training.py)

FACT_COLUMNS = (
    *("configuration", "repeat", "warmup_steps", "first_step", "cores", "threads", "learning_rate"),
    *("samples_per_epoch", "communicator", "units", "skipped_steps", "commit", "versions", "training"),
)


def fact_rows(record: Record) -> list[Row]:
    """One row, in the order of COLUMNS, of a trial that trained; none of any other. Raises as Training.of does.

    `first_step`: seconds of rank 0's first timed step over the median of its steps. `cores`, `threads`: (fewest, most)
    over the ranks; cores 0 where nothing is pinned. `training`: a tuple of each rank's, empty where there is none.
    """
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
            *(printable(record.configuration), record.trial.repeat),
            *(min(len(rank.warmup_seconds) for rank in ranks), steps[0] / usual if usual else None),
            *((min(cores), max(cores)), (min(threads), max(threads))),
            *(rates.pop() if len(rates) == 1 else None, _epoch(record)),
            *(communicator(ranks), units if isinstance(units, int) else None),
            max((rank.skipped_steps for rank in ranks if rank.skipped_steps is not None), default=None),
            *(printable(record.commit), _versions(ranks[0].versions), trained),
        )
    ]


def facts_frame(rows: list[Row]) -> pd.DataFrame:
    """COLUMNS; what is unknown is None."""
    return pd.DataFrame(rows, columns=list(FACT_COLUMNS), dtype=object)


def _epoch(record: Record) -> int:
    """Samples of all ranks in an epoch."""
    return max(r.steps_per_epoch for r in record.ranks) * sum(rank.samples_per_step for rank in record.ranks)


def _versions(installed: dict[str, str]) -> str:
    return ", ".join(f"{printable(name)} {printable(version)}" for name, version in sorted(installed.items()))


# How the timed steps of each run were spread: some order statistics of its slowest rank, whose window counts.
#
# Quantiles and not the samples: ten thousand runs of thousands of steps stay small. Every sample is in samples.npz.

QUANTILES = {"least": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "most": 1.0}
STEP_COLUMNS = ("configuration", "repeat", "steps", *(f"{name}_seconds" for name in QUANTILES))


def step_rows(record: Record) -> list[Row]:
    """One of COLUMNS; none of a run without timed steps. Quantiles are steps that there were, none in between."""
    slowest = max(record.ranks, key=lambda rank: rank.window_seconds).ordered_seconds if record.ranks else []
    if not slowest:
        return []
    last = len(slowest) - 1
    return [
        (
            *(printable(record.configuration), record.trial.repeat, len(slowest)),
            *(slowest[round(share * last)] for share in QUANTILES.values()),
        )
    ]


def steps_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """COLUMNS, with types that do not depend on which rows there are."""
    kinds = (
        dict.fromkeys(STEP_COLUMNS)
        | dict.fromkeys(STEP_COLUMNS[3:], "float64")
        | dict.fromkeys(("repeat", "steps"), "int64")
    )
    return typed(rows, kinds)


# The timeline of a record as a frame: which worker did what, for which stage and micro-batch, from when to when.
#
#     rank's timeline   [0, "forward", 2, 5, 0.131, 0.140]
#     row               replica 0, worker 1, rank 1, step 0, forward, stage 2, micro-batch 5, 0.131 s, 0.140 s
#
# Ranks count along one replica after the other (scaling_study/stages/parts.py). Where one process drives all of its
# pipeline's devices, each stage is a worker. Records older than timelines have no rows.

FORWARD, BACKWARD, INPUT, WEIGHT = KINDS = ("forward", "backward", "backward_input", "backward_weight")
WHOSE = ("configuration", "repeat", "replica", "worker", "rank")
EVENT_COLUMNS = (*WHOSE, "step", "kind", "stage", "micro_batch", "start_seconds", "end_seconds")
STAGE_COLUMNS = (*WHOSE, "stage", "of", "layers", "parameters", "shared_parameters", "activations_bytes")
INTEGERS = ("repeat", "replica", "worker", "rank", "step", "stage", "micro_batch", "of", "parameters")


def of(record: Record) -> pd.DataFrame:
    """COLUMNS, in the order of the ranks. Raises ValueError for an event that is none."""
    return events_frame(event_rows(record), EVENT_COLUMNS)


def stages(record: Record) -> pd.DataFrame:
    """STAGE_COLUMNS: what each rank holds of the model; `activations_bytes` is its peak, all its stages together."""
    return events_frame(stage_rows(record), STAGE_COLUMNS)


def event_rows(record: Record) -> list[Row]:
    """The rows of `of`. What a rank notes in two pieces, one right after the other, is one: a forward and its loss."""
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
    """The rows of `stages`."""
    return [
        (
            *_whose(record, rank, int(stage["stage"])),
            *(stage["stage"], stage["of"], printable(", ".join(stage["layers"])), stage["parameters"]),
            *(stage.get("shared_parameters", 0), rank.memory.get("activations")),
        )
        for rank in record.ranks
        for stage in rank.stages
    ]


def events_frame(rows: list[Row], columns: tuple[str, ...]) -> pd.DataFrame:
    """With types that do not depend on the rows."""
    kinds = {name: "int64" if name in INTEGERS else "float64" for name in columns}
    return typed(rows, kinds | dict.fromkeys(name for name in columns if name in TEXTS))


TEXTS = ("configuration", "kind", "layers")


def _whose(record: Record, rank: RankReport, stage: int) -> Row:
    workers = record.trial.stages or rank.world_size
    table = FRAMEWORKS.get(record.trial.framework)
    replica, worker = divmod(rank.rank, workers)
    if table is not None and table.one_process:
        worker = stage % workers
    return printable(record.configuration), record.trial.repeat, replica, worker, rank.rank


# What records hold that no column of results.csv could, as frames: timelines, stages, epochs, notes, step times, ...
#
# Of every trial that is ok and is no gate; each frame begins with the `configuration` and the `repeat` it is of.

EPOCH_COLUMNS = (
    *("configuration", "repeat", "rank", "warmup", "steps", "samples"),
    *("data_seconds", "training_seconds", "running_seconds", "learning_rate"),
)
NOTE_COLUMNS = ("configuration", "repeat", "note")


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
    """The frames of a study: events.COLUMNS, events.STAGE_COLUMNS, EPOCH_COLUMNS, NOTE_COLUMNS, network.COLUMNS,
    facts.COLUMNS, why.ranks.COLUMNS, step_times.COLUMNS, trained.COLUMNS, trained.EVALUATION_COLUMNS,
    gradient_noise.COLUMNS, rounds.COLUMNS, blocks.COLUMNS."""

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
            *(*who, rank.rank, bool(epoch["warmup"]), int(epoch["steps"]), int(epoch["samples"])),
            *(float(epoch[f"{part}_seconds"]) for part in ("data", "training", "running")),
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
    kinds = dict.fromkeys(EPOCH_COLUMNS) | dict.fromkeys(("repeat", "rank", "steps", "samples"), "int64")
    kinds |= {"warmup": "bool"} | dict.fromkeys(EPOCH_COLUMNS[6:], "float64")
    return Details(
        events_frame(rows["events"], EVENT_COLUMNS),
        events_frame(rows["stages"], STAGE_COLUMNS),
        typed(rows["epochs"], kinds),
        pd.DataFrame(rows["notes"], columns=list(NOTE_COLUMNS)),
        probes_frame(rows["network"]),
        facts_frame(rows["facts"]),
        ranks_frame(rows["ranks"]),
        steps_frame(rows["steps"]),
        training.trained_frame(rows["trained"], training.TRAINED_COLUMNS),
        training.trained_frame(rows["evaluations"], training.EVALUATION_COLUMNS),
        training.noise_frame(rows["noise"]),
        rounds.rounds_frame(rows["rounds"]),
        blocks_frame(rows["blocks"]),
    )


def none() -> Details:
    return gathered([])
