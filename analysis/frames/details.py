"""Facts of records that results.csv has no column for, as frames: timelines, stages, epochs, blocks, step times.

Details lists them. Their columns begin with `configuration` and `repeat`, and they cover every trial that is no gate. A
row function raises KeyError, TypeError or ValueError for what is not whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames import measured, training
from analysis.frames.measured import PHASES, Row, communicator, who
from analysis.frames.rows import WHO, numbers, typed, whole
from scaling_study.errors import printable
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records.schema import RankReport, Record, gpus_in_use, waited_for
from scaling_study.stats.intervals import within_run
from scaling_study.stats.launches import together
from scaling_study.stats.network import COLLECTIVES

PHASE_COLUMNS = tuple(f"{name}_seconds" for name in PHASES)
OF_A_DEVICE = ("forward_flops_per_sample", "step_flops_per_sample", "peak_flops_per_second", "peak_bytes_per_second",
               "tf32", "moved_bytes")  # fmt: skip
FORWARD, BACKWARD, INPUT, WEIGHT = KINDS = ("forward", "backward", "backward_input", "backward_weight")
# Quantiles and not the samples: ten thousand runs of thousands of steps stay small. Every sample is in samples.npz.
QUANTILES = {"least": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "most": 1.0}


# Blocks of launches that configurations took turns in: `at` is the Unix time at which one began, `log_seconds` that of
# the mean step on the slowest rank, `step_variance` relative to that mean; NaN of a single step.
BLOCKS = WHO | {"together": None} | whole("round") | numbers("at") | whole("steps")
BLOCKS |= numbers("log_seconds", "step_variance")


def block_rows(record: Record) -> list[Row]:
    """A row for each block; none of a trial that had its launch to itself."""
    if not (record.launch and record.ranks):
        return []
    slowest = max(record.ranks, key=lambda rank: rank.window_seconds)
    seconds, start, found = np.asarray(slowest.step_seconds, dtype=np.float64), 0, list[Row]()
    counts = [block.steps for block in slowest.blocks]
    if counts and (min(counts) < 1 or sum(counts) != len(seconds)):
        raise ValueError(f"blocks of {counts} steps are not its {len(seconds)}")
    for block in slowest.blocks:
        steps = seconds[start : start + block.steps]
        start += block.steps
        mean = float(steps.mean())
        scatter = float(steps.var(ddof=1)) / mean**2 if len(steps) > 1 else None
        at = block.at or math.nan
        found.append((*who(record), together(record.launch), block.round, at, len(steps), math.log(mean), scatter))
    return found


# A probe of the network: a row for each collective, size and state of the cores. `seconds`: the mean of a call, its
# interval within the run, the fastest and the slowest call. `sent_bytes`: of one call and rank, mean over the ranks.
NETWORK = WHO | {"collective": None, "busy": "bool"} | whole("bytes", "calls")
NETWORK |= numbers("seconds", "seconds_low", "seconds_high", "seconds_min", "seconds_max", "sent_bytes")


def probe_rows(record: Record) -> list[Row]:
    """A call has taken as long as its slowest rank: ranks' seconds are folded call by call, before any mean."""
    found = []
    for index, first in enumerate(record.ranks[0].network if record.ranks else ()):
        ours = [rank.network[index] for rank in record.ranks]
        calls = [max(each) for each in zip(*(row.seconds for row in ours), strict=True)]
        mean = within_run(calls)
        if first.collective not in COLLECTIVES or mean.mean <= 0:
            raise ValueError(f"row {index} of the network is of no collective, or took no time")
        about = (first.collective, first.busy, first.bytes, len(calls))
        times = mean.mean, mean.low, mean.high, min(calls), max(calls)
        found.append((*who(record), *about, *times, measured.mean_of_known(row.sent_bytes for row in ours)))
    return found


# Ranks are kept apart because waiting for the slowest is only seen between them. `step_seconds`: the mean of the timed
# steps; `instrumented_seconds`: of those whose phases were timed.
RANKS = WHO | whole("rank") | {"device_name": None}
RANKS |= numbers("step_seconds", "instrumented_seconds", *PHASE_COLUMNS, *OF_A_DEVICE, "price_per_worker_hour")


def rank_rows(record: Record) -> list[Row]:
    """A row for each rank."""
    price = _price(record.machine_file)
    return [
        (
            *who(record),
            rank.rank,
            printable(rank.device_name),
            rank.window_seconds / len(rank.step_seconds) if rank.step_seconds else None,
            *(getattr(rank.phases, name, None) for name in ("step_seconds", *PHASE_COLUMNS)),
            *(getattr(rank, name) for name in OF_A_DEVICE),
            price,
        )
        for rank in record.ranks
    ]


def _price(machine_file: dict[str, Any]) -> float | None:
    """The price of a worker for an hour, from its machine file; None where that gives none, or no usable one."""
    price = machine_file.get("price_per_worker_hour")
    if isinstance(price, int | float) and not isinstance(price, bool) and math.isfinite(price) and price >= 0:
        return float(price)
    return None


# How a trial was run, in a row each. `first_step`: seconds of rank 0's first timed step over the median of its steps;
# `cores` and `threads`: fewest and most over the ranks, 0 where nothing is pinned; `device_names`: the different ones;
# `watts`: mean that one device drew in the timed window, not in blocks, which are short for a counter of energy (by it
# an H200 drew 780 W of its 700); `units`: of a sharded model; `training`: the TrainingReport of each rank; empty where
# there is none. `code`: digest of the files of an observed command. `first_losses`, `first_learning_rates`: of an
# observed command, mean of the ranks, and of rank 0; empty of any other. `waited_for`: the one rank that the others
# wait for; None where there is none, or nothing says so. `gpus_in_use`: its GPUs that others used before it began, in
# words. `model_code`: a model of the user's own and the digest of its code; empty of any other.
FACTS = dict.fromkeys(
    (
        *(*WHO, "warmup_steps", "first_step", "cores", "threads", "device_names", "watts"),
        *("learning_rate", "samples_per_epoch", "communicator", "units", "skipped_steps"),
        *("commit", "model_code", "versions", "code"),
        *("training", "first_losses", "first_learning_rates", "waited_for", "gpus_in_use"),
    ),
    "object",
)


def fact_rows(record: Record) -> list[Row]:
    """A row for a trial that trained; none for any other."""
    ranks = record.ranks
    samples = sum(rank.samples_per_step for rank in ranks)
    if not samples:
        return []
    steps = ranks[0].step_seconds
    usual = median(ranks[0].ordered_seconds) if steps else 0.0
    cores, threads = [len(rank.cores) for rank in ranks], [rank.threads for rank in ranks]
    rates = {rank.learning_rate for rank in ranks}
    energies = [(rank.energy_joules, rank.window_seconds * max(1, len(rank.gpu_uuids))) for rank in ranks]
    watts = [joules / seconds for joules, seconds in energies if joules is not None and seconds > 0]
    units, versions = ranks[0].backend.get("units"), sorted(ranks[0].versions.items())
    first_losses = [rank.first_losses for rank in ranks]
    return [
        (
            *who(record),
            min(len(rank.warmup_seconds) for rank in ranks),
            steps[0] / usual if usual else None,
            (min(cores), max(cores)),
            (min(threads), max(threads)),
            tuple(dict.fromkeys(printable(rank.device_name) for rank in ranks)),
            fmean(watts) if len(watts) == len(ranks) and not record.launch else None,
            rates.pop() if len(rates) == 1 else None,
            max(rank.steps_per_epoch for rank in ranks) * samples,
            communicator(ranks),
            units if isinstance(units, int) else None,
            max((rank.skipped_steps for rank in ranks if rank.skipped_steps is not None), default=None),
            printable(record.commit),
            f"{record.trial.model} {printable(record.model_code)}" if record.model_code else "",
            ", ".join(f"{printable(name)} {printable(version)}" for name, version in versions),
            printable(str(ranks[0].backend.get("code") or "")),
            tuple(rank.training for rank in ranks if rank.training),
            tuple(map(_mean_of_all, zip(*first_losses, strict=False))),
            tuple(ranks[0].first_learning_rates),
            waited_for(ranks),
            tuple(printable(str(use)) for use in gpus_in_use(record)),
        )
    ]


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    """None where one of them is unknown."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


STEPS = WHO | whole("steps") | numbers(*(f"{name}_seconds" for name in QUANTILES))


def step_rows(record: Record) -> list[Row]:
    """Order statistics of the timed steps of the slowest rank, whose window counts: steps that there were, none in
    between. No row of a run without timed steps."""
    slowest = max(record.ranks, key=lambda rank: rank.window_seconds).ordered_seconds if record.ranks else []
    last = len(slowest) - 1
    quantiles = (slowest[round(share * last)] for share in QUANTILES.values())
    return [(*who(record), len(slowest), *quantiles)] if slowest else []


# The timeline: which worker did what, for which stage and micro-batch, from when to when.
#
#     rank's timeline   [0, "forward", 2, 5, 0.131, 0.140]
#     row               replica 0, worker 1, rank 1, step 0, forward, stage 2, micro-batch 5, 0.131 s, 0.140 s
#
# Ranks count along one replica after the other (scaling_study/stages/parts.py). Workers that share the matrices of
# their stages count as replicas: each part has a pipeline of its own. Where one process drives all of its
# pipeline's devices, each stage is a worker. Records older than timelines have no rows.
EVENTS = WHO | whole("replica", "worker", "rank", "step") | {"kind": None} | whole("stage", "micro_batch")
EVENTS |= numbers("start_seconds", "end_seconds")


def event_rows(record: Record) -> list[Row]:
    """Events with pieces joined that follow right after each other: a forward and its loss.

    Raises ValueError for an event that is none."""
    events: list[Row] = []
    for rank in record.ranks:
        before: Row = ()
        for event in rank.timeline:
            step, kind, stage, micro_batch, start, end = event
            if kind not in KINDS or not start <= end:
                raise ValueError(f"rank {rank.rank} has an event that is none: {event}")
            row = (*_whose(record, rank, stage), step, kind, stage, micro_batch)
            if row == before:
                start = events.pop()[-2]
            events.append((*row, start, end))
            before = row
    return events


# Stages that each rank holds of the model. `activations_bytes`: the peak of its rank, all its stages together.
STAGES = WHO | whole("replica", "worker", "rank", "stage", "of") | {"layers": None} | whole("parameters")
STAGES |= numbers("shared_parameters", "activations_bytes")


def stage_rows(record: Record) -> list[Row]:
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
    parts = record.trial.tensor_parallel or 1  # of the same matrices, side by side
    replica, worker = divmod(rank.rank // parts, workers)
    if table is not None and table.one_process:
        worker = stage % workers
    return *who(record), replica * parts + rank.rank % parts, worker, rank.rank


EPOCHS = WHO | whole("rank") | {"warmup": "bool"} | whole("steps", "samples")
EPOCHS |= numbers("data_seconds", "training_seconds", "running_seconds", "learning_rate")


def epoch_rows(record: Record) -> list[Row]:
    """A row for each epoch of each rank; none of a trial that failed, whatever its ranks report."""
    if record.status != "ok":
        return []
    return [
        (*who(record), rank.rank, *astuple(epoch), rank.learning_rate) for rank in record.ranks for epoch in rank.epochs
    ]


def note_rows(record: Record) -> list[Row]:
    """Each note of the ranks once."""
    notes = dict.fromkeys(note for rank in record.ranks for note in rank.notes)
    return [(*who(record), printable(note)) for note in notes]


def _frame(columns: Mapping[str, Any], rows_of: Callable[[Record], list[Row]]) -> dict[str, Any]:
    return {"columns": columns, "rows_of": rows_of}


@dataclass(frozen=True)
class Details:
    """The frames of a study: of each its columns, and the function that gives the rows of one record."""

    events: pd.DataFrame = field(metadata=_frame(EVENTS, event_rows))
    stages: pd.DataFrame = field(metadata=_frame(STAGES, stage_rows))
    epochs: pd.DataFrame = field(metadata=_frame(EPOCHS, epoch_rows))
    notes: pd.DataFrame = field(metadata=_frame(WHO | {"note": None}, note_rows))
    facts: pd.DataFrame = field(metadata=_frame(FACTS, fact_rows))
    ranks: pd.DataFrame = field(metadata=_frame(RANKS, rank_rows))
    steps: pd.DataFrame = field(metadata=_frame(STEPS, step_rows))
    trained: pd.DataFrame = field(metadata=_frame(training.TRAINED, training.trained_rows))
    evaluations: pd.DataFrame = field(metadata=_frame(training.EVALUATIONS, training.evaluation_rows))
    noise: pd.DataFrame = field(metadata=_frame(training.NOISE, training.noise_rows))
    network: pd.DataFrame = field(metadata=_frame(NETWORK, probe_rows))
    rounds: pd.DataFrame = field(metadata=_frame(measured.ROUNDS, measured.round_rows))
    blocks: pd.DataFrame = field(metadata=_frame(BLOCKS, block_rows))


def details_of(record: Record) -> dict[str, list[Row]]:
    """Rows of one record for each frame."""
    return {of.name: of.metadata["rows_of"](record) for of in fields(Details)}


def gathered(many: Iterable[Mapping[str, list[Row]]] = ()) -> Details:
    """One frame of each kind from the rows of many records; empty where no record has any."""
    every = list(many)
    return Details(
        **{
            of.name: typed((row for rows in every for row in rows[of.name]), of.metadata["columns"])
            for of in fields(Details)
        }
    )
