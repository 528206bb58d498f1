"""Trainings to a result as frames: their outcomes, evaluations and gradient noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.frames.measured import Row, mean_of_known, who
from analysis.frames.rows import numbers
from scaling_study import targets
from scaling_study.errors import printable
from scaling_study.records.schema import RankReport, Record, TrainingReport

# Squared norms of gradients at two batch sizes, step by step: rank 0's `GradientNoise`, absent in older records.

NOISE = {"configuration": None} | numbers("repeat", "seed", "step", "small_batch", "big_batch", "small_sqr", "big_sqr")
NOISE |= {"unknown": None}  # why there is none


def noise_rows(record: Record) -> list[Row]:
    """A row for each step that was noted, or one that says why there is none. Steps whose norms are no numbers, as of a
    training that diverged, are left out. Raises ValueError for impossible batch sizes."""
    training = training_of(record)
    if not (training and training.noise):
        return []
    noise, whose = training.noise, (*who(record), record.trial.seed)
    if noise.unknown:
        nothing = (math.nan,) * 5
        return [(*whose, *nothing, printable(noise.unknown))]
    batches = float(noise.small_batch), float(noise.big_batch)
    if not 0 < batches[0] < batches[1]:
        raise ValueError(f"training.noise: small_batch {batches[0]:g} is not below big_batch {batches[1]:g}")
    return [
        (*whose, float(step), *batches, small, big, "")
        for step, small, big in noise.rows
        if small is not None and big is not None
    ]


def training_of(record: Record) -> TrainingReport | None:
    """Rank 0's account of its training; None of a run that was not trained to a result, or that failed: its ranks may
    have reported all the same, and what they report is no seed."""
    return record.ranks[0].training if record.status == "ok" and record.ranks else None


# Results of trainings: a row for each training, and a row for each of its evaluations.

METRICS = tuple(targets.METRICS)
SHOWN = tuple(  # beside other figures of a training: what pairs of parts and triplet scores come to has its own table
    name for name in METRICS if name not in set(targets.TRIPLETS) - {targets.CHOSEN_BY, *targets.HEADS}
)
TARGET = ("steps", "samples", "seconds", "all_seconds")  # of what reached it
BEFORE = ("steps", "samples", "seconds")  # of the evaluation before that one; 0 where there was none
OF_AN_EVALUATION = ("steps", "samples", "epoch", "seconds", "all_seconds", "learning_rate", "train_loss", *METRICS)
TRAINED = {"configuration": "object"} | numbers("repeat", "seed") | {"ended_by": "object", "target": "object"}
TRAINED |= numbers("steps", "samples", "train_seconds", "evaluate_seconds", "save_seconds")
TRAINED |= numbers(*(f"target_{name}" for name in TARGET), *(f"before_{name}" for name in BEFORE))
TRAINED |= numbers(*(f"test_{name}" for name in METRICS), "test_samples")
TRAINED |= numbers("resumed", "lost_steps", "best_step", "cores_busy", "gpu_utilization_percent", "peak_memory_bytes")
EVALUATIONS = {"configuration": "object"} | numbers("repeat", *OF_AN_EVALUATION)
WATCHED = ("train", "evaluate", "save", "log")  # of a training's seconds: those of which CPU time is known


def trained_rows(record: Record) -> list[Row]:
    """A row of TRAINED for a training to a result."""
    training = training_of(record)
    if not (training and training.ended_by):
        return []
    reached, test = training.reached or {}, training.evaluated
    used, peaks = ([getattr(rank, name) for rank in record.ranks] for name in tuple(TRAINED)[-2:])
    return [
        (
            *who(record),
            record.trial.seed,
            printable(training.ended_by),
            printable(training.target),
            training.steps,
            _samples(record, training),
            *(training.seconds[name] for name in ("train", "evaluate", "save")),
            *map(reached.get, TARGET),
            *map(before(training).get, BEFORE),
            *map(test.get, (*METRICS, "samples")),
            training.resumed,
            training.lost_steps,
            training.best_step,
            _cores_busy(record.ranks),
            mean_of_known(used),
            max((peak for peak in peaks if peak is not None), default=None),
        )
    ]


def evaluation_rows(record: Record) -> list[Row]:
    """A row of EVALUATIONS for each evaluation of a training."""
    training = training_of(record)
    return [(*who(record), *map(row.get, OF_AN_EVALUATION)) for row in (training.rows if training else ())]


def before(training: TrainingReport) -> Mapping[str, float | None]:
    """The evaluation before the one at which the target was reached; zeros where there was none."""
    if not training.reached:
        return {}
    met = training.reached.get("steps") or math.inf
    earlier = [row for row in training.rows if (row.get("steps") or math.inf) < met]
    return max(earlier, key=lambda row: row["steps"] or 0.0, default=dict.fromkeys(BEFORE, 0.0))


def _samples(record: Record, training: TrainingReport) -> int:
    """Samples of the whole training. A step has a global batch; a round of peers, as many as the last evaluation
    counted."""
    last = training.rows[-1] if record.ranks[0].rounds and training.rows else {}
    return int(last.get("samples") or 0) + (training.steps - int(last.get("steps") or 0)) * record.trial.global_batch


def _cores_busy(ranks: Sequence[RankReport]) -> float | None:
    """That all ranks together kept busy, on average of all of their training but for the test; None: not known."""
    cpu = [rank.own_cpu_seconds for rank in ranks]
    trainings = [rank.training for rank in ranks if rank.training]
    seconds = max(sum(each.seconds.get(part, 0.0) for part in WATCHED) for each in trainings)
    return sum(value or 0.0 for value in cpu) / seconds if seconds > 0 and None not in cpu else None


def brackets(ours: pd.DataFrame, unit: str) -> tuple[pd.Series, pd.Series]:
    """(after, by) of rows of TRAINED, in `steps`, `samples` or `seconds`: a target is met at some time after the
    evaluation before, and by the one at which it was seen. 0 where no evaluation before is known, infinity where the
    training was stopped before the target."""
    reached, stopped = ours.target_steps.notna(), "train_seconds" if unit == "seconds" else unit
    return ours[f"before_{unit}"].fillna(0.0).where(reached, ours[stopped]), ours[f"target_{unit}"].fillna(math.inf)
