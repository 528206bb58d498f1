"""Trainings to a result as frames: their outcomes, evaluations, gradient noise, and what each says of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.measured import Row, who
from analysis.frames.rows import numbers
from scaling_study import targets
from scaling_study.errors import printable
from scaling_study.records.store import RankReport, Record

# Squared norms of gradients at two batch sizes, step by step. Rank 0's training["noise"] is {"small_batch": b,
# "big_batch": B, "every": k, "rows": [[step, small_sqr, big_sqr], ...]}, or {"unknown": why} where a framework shows no
# rank's own gradients; absent in older records.

NOISE = {"configuration": None} | numbers("repeat", "seed", "step", "small_batch", "big_batch", "small_sqr", "big_sqr")
NOISE |= {"unknown": None}  # why there is none


def noise_rows(record: Record) -> list[Row]:
    """A row for each step that was noted, or one that says why there is none. Steps whose norms are no numbers, as of a
    training that diverged, are left out. Raises KeyError, TypeError or ValueError for what is not whole."""
    training = record.ranks[0].training if record.ranks else {}
    noise = training.get("noise")
    if noise is None:
        return []
    if not isinstance(noise, dict):
        raise ValueError("training.noise is no mapping")
    whose = (*who(record), record.trial.seed)
    if "unknown" in noise:
        nothing = (math.nan,) * 5
        return [(*whose, *nothing, printable(str(noise["unknown"])))]
    batches = float(noise["small_batch"]), float(noise["big_batch"])
    if not 0 < batches[0] < batches[1] < math.inf:
        raise ValueError(f"training.noise: small_batch {batches[0]:g} is not below big_batch {batches[1]:g}")
    noted = [(float(step), small, big) for step, small, big in noise["rows"] if small is not None and big is not None]
    made = [(*whose, step, *batches, float(small), float(big), "") for step, small, big in noted]
    return [row for row in made if math.isfinite(row[6]) and math.isfinite(row[7])]


# A training to a result, rank by rank: `training` of the rank's report (docs/record.md).
#
# Nothing here is timed, and nothing of it is in results.csv. views/training_flaws.py looks in it for the flaws of
# published trainings.

WORDS = ("logged_loss", "selected_on", "layout", "resumed_layout", "one_order")


@dataclass(frozen=True)
class TrainingRecord:
    """`training` of one rank. What is not known is empty."""

    groups: tuple[tuple[str, int, float], ...] = ()  # name, parameters, learning rate of each group of the optimiser
    asked: frozenset[str] = frozenset()  # names of groups that are frozen because the trial says so
    # Part of the model -> norm of its change over its own norm.
    moved: Mapping[str, float] = field(default_factory=dict)
    logged_loss: str = ""  # what a logged loss is the mean over: "epoch", "last batch"
    splits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # split -> set it was published in -> samples
    in_both: Mapping[str, int] = field(default_factory=dict)  # "validation/test" -> samples that are in both
    selected_on: str = ""  # the split that chose the model
    layout: str = ""  # a digest of the names and shapes of the weights
    resumed_layout: str = ""  # of the checkpoint that it went on from
    orders: tuple[str, ...] = ()  # a digest of the samples of each epoch, in the order in which this rank read them
    one_order: str = ""  # why every epoch is to have the same
    evaluated: Mapping[str, Any] = field(default_factory=dict)  # "split", "samples", and the figures that are claimed
    validated: Mapping[str, Any] = field(default_factory=dict)  # likewise, of the last evaluation of the training
    data_share: float | None = None  # of the seconds of training, until the host had its batches
    shown_maps: Mapping[str, str] = field(default_factory=dict)  # of class activation: whose "channels", which "class"

    @classmethod
    def of(cls, training: Mapping[str, Any]) -> TrainingRecord:
        """From a record. Raises ValueError, TypeError, KeyError or AttributeError for what is of no right shape."""
        groups = _list(training, "groups")
        seconds = float(dict(_map(training, "seconds")).get("train", 0.0))
        share = float(training["data_seconds"]) / seconds if "data_seconds" in training and seconds > 0 else None
        splits = {name: {printable(k): int(n) for k, n in of.items()} for name, of in _map(training, "splits")}
        return cls(
            groups=tuple((printable(g["name"]), int(g["parameters"]), float(g["learning_rate"])) for g in groups),
            asked=frozenset(printable(g["name"]) for g in groups if g.get("asked")),
            moved={name: float(value) for name, value in _map(training, "moved")},
            splits=splits,
            in_both={name: int(n) for name, n in _map(training, "in_both")},
            orders=tuple(printable(str(order)) for order in _list(training, "orders")),
            evaluated=dict(_map(training, "evaluated")),
            validated=dict(_map(training, "validated")),
            data_share=share,
            shown_maps={name: printable(str(value)) for name, value in _map(training, "shown_maps")},
            **{name: printable(str(training.get(name, ""))) for name in WORDS},
        )


def _list(training: Mapping[str, Any], key: str) -> list[Any]:
    value = training.get(key, [])
    if not isinstance(value, list):
        raise ValueError(f"training.{key} is no list")
    return value


def _map(training: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    value = training.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"training.{key} is no mapping")
    return [(printable(name), inner) for name, inner in value.items()]


# Results of trainings: a row for each training, and a row for each of its evaluations.

METRICS = tuple(targets.METRICS)
SHOWN = tuple(  # beside other figures of a training: what pairs of parts and triplet scores come to has its own table
    name for name in METRICS if name not in set(targets.TRIPLETS) - {targets.CHOSEN_BY, *targets.HEADS}
)
TARGET = ("steps", "samples", "seconds", "all_seconds")  # of what reached it
OF_AN_EVALUATION = ("steps", "samples", "epoch", "seconds", "all_seconds", "learning_rate", "train_loss", *METRICS)
TRAINED = {"configuration": "object"} | numbers("repeat", "seed") | {"ended_by": "object", "target": "object"}
TRAINED |= numbers("steps", "samples", "train_seconds", "evaluate_seconds", "save_seconds")
TRAINED |= numbers(*(f"target_{name}" for name in TARGET), *(f"test_{name}" for name in METRICS), "test_samples")
TRAINED |= numbers("resumed", "lost_steps", "best_step", "cores_busy", "gpu_utilization_percent", "peak_memory_bytes")
EVALUATIONS = {"configuration": "object"} | numbers("repeat", *OF_AN_EVALUATION)
WATCHED = ("train", "evaluate", "save", "log")  # of a training's seconds: those of which CPU time is known


def trained_rows(record: Record) -> list[Row]:
    """A row of TRAINED for a training to a result."""
    training = record.ranks[0].training if record.ranks else {}
    if "rows" not in training:
        return []
    reached, test, seconds = training["reached"] or {}, training["evaluated"], training["seconds"]
    used, peaks = ([getattr(rank, name) for rank in record.ranks] for name in tuple(TRAINED)[-2:])
    known = [share for share in used if share is not None]
    return [
        (
            *who(record),
            record.trial.seed,
            printable(training["ended_by"]),
            printable(training["target"]),
            int(training["steps"]),
            _samples(record),
            *(float(seconds[name]) for name in ("train", "evaluate", "save")),
            *map(reached.get, TARGET),
            *map(test.get, (*METRICS, "samples")),
            int(training["resumed"]),
            int(training["lost_steps"]),
            training.get("best_step"),
            _cores_busy(record.ranks),
            sum(known) / len(known) if known else None,
            max((peak for peak in peaks if peak is not None), default=None),
        )
    ]


def evaluation_rows(record: Record) -> list[Row]:
    """A row of EVALUATIONS for each evaluation of a training."""
    rows = record.ranks[0].training.get("rows", ()) if record.ranks else ()
    return [(*who(record), *map(row.get, OF_AN_EVALUATION)) for row in rows]


def _samples(record: Record) -> int:
    """Samples of the whole training. A step has a global batch; a round of peers, as many as the last evaluation
    counted."""
    training, batch = record.ranks[0].training, record.trial.global_batch
    last = training["rows"][-1] if record.ranks[0].rounds and training["rows"] else {"steps": 0, "samples": 0}
    return int(last["samples"]) + (int(training["steps"]) - int(last["steps"])) * batch


def _cores_busy(ranks: Sequence[RankReport]) -> float | None:
    """That all ranks together kept busy, on average of all of their training but for the test; None: not known."""
    cpu = [rank.own_cpu_seconds for rank in ranks]
    seconds = max(sum(float(rank.training["seconds"].get(part, 0.0)) for part in WATCHED) for rank in ranks)
    return sum(value or 0.0 for value in cpu) / seconds if seconds > 0 and None not in cpu else None


def evaluation_steps(evaluations: pd.DataFrame) -> dict[str, float]:
    """Configuration -> steps between two of its evaluations."""
    return {
        str(name): float(np.median(np.diff(np.unique([0.0, *rows.steps]))))
        for name, rows in evaluations.groupby("configuration", sort=False)
    }


def rounding(ours: pd.DataFrame, every: dict[str, float]) -> float:
    """The standard deviation of the logarithm of what takes a target, by evaluations alone: it was reached at some time
    since the one before, and each moment is as likely. `ours`: rows of TRAINED; `every`: of evaluation_steps."""
    between = ours.configuration.map(every) / ours.target_steps
    return float((between / math.sqrt(12)).mean()) if between.notna().any() else 0.0
