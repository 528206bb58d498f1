"""What trainings to a result came to: a row of each, and a row of each of their evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.frames.rows import typed
from analysis.frames.timeline import Row
from scaling_study import targets
from scaling_study.quoting import printable
from scaling_study.records.store import RankReport, Record

METRICS = tuple(targets.METRICS)
SHOWN = tuple(  # beside other figures of a training: what pairs of parts and triplet scores come to has its own table
    name for name in METRICS if name not in set(targets.TRIPLETS) - {targets.CHOSEN_BY, *targets.HEADS}
)
COLUMNS = (
    *("configuration", "repeat", "seed", "ended_by", "target", "steps", "samples", "train_seconds"),
    *("evaluate_seconds", "save_seconds", "target_steps", "target_samples", "target_seconds", "target_all_seconds"),
    *(f"test_{name}" for name in METRICS),
    *("test_samples", "resumed", "lost_steps"),
    *("best_step", "cores_busy", "gpu_utilization_percent", "peak_memory_bytes"),
)
EVALUATION_COLUMNS = (
    *("configuration", "repeat", "steps", "samples", "epoch", "seconds", "all_seconds", "learning_rate", "train_loss"),
    *METRICS,
)
WATCHED = ("train", "evaluate", "save", "log")  # of a training's seconds: those of which CPU time is known
TEXTS = ("configuration", "ended_by", "target")


def rows(record: Record) -> tuple[list[Row], list[Row]]:
    """(the training's row, its evaluations'). Raises KeyError, TypeError or ValueError for what is not whole."""
    training = record.ranks[0].training if record.ranks else {}
    if "rows" not in training:
        return [], []
    who = (printable(record.configuration), int(record.trial["repeat"]))
    reached, test, seconds = training["reached"] or {}, training["evaluated"], training["seconds"]
    of_target = (reached.get(key) for key in ("steps", "samples", "seconds", "all_seconds"))
    whole = (
        *(*who, int(record.trial["seed"]), printable(training["ended_by"]), printable(training["target"])),
        *(int(training["steps"]), _samples(record)),
        *(float(seconds[name]) for name in ("train", "evaluate", "save")),
        *of_target,
        *(test.get(name) for name in METRICS),
        *(test.get("samples"), int(training["resumed"]), int(training["lost_steps"])),
        *(training.get("best_step"), _cores_busy(record.ranks), *_of_devices(record.ranks)),
    )
    evaluations = [(*who, *(row.get(name) for name in EVALUATION_COLUMNS[2:])) for row in training["rows"]]
    return [whole], evaluations


def _samples(record: Record) -> int:
    """Of the whole training: a step has a global batch, but a round of peers as many as the last evaluation counted."""
    training, batch = record.ranks[0].training, int(record.trial["global_batch"])
    last = training["rows"][-1] if record.ranks[0].rounds and training["rows"] else {"steps": 0, "samples": 0}
    return int(last["samples"]) + (int(training["steps"]) - int(last["steps"])) * batch


def _cores_busy(ranks: Sequence[RankReport]) -> float | None:
    """That all ranks together kept busy, on average of all of their training but for the test; None: not known."""
    cpu = [rank.own_cpu_seconds for rank in ranks]
    seconds = max(sum(float(rank.training["seconds"].get(part, 0.0)) for part in WATCHED) for rank in ranks)
    return sum(value or 0.0 for value in cpu) / seconds if seconds > 0 and None not in cpu else None


def _of_devices(ranks: Sequence[RankReport]) -> tuple[float | None, float | None]:
    """(mean use of GPUs in per cent, largest peak of memory in bytes); None: not known."""
    used = [rank.gpu_utilization_percent for rank in ranks if rank.gpu_utilization_percent is not None]
    peaks = [rank.peak_memory_bytes for rank in ranks if rank.peak_memory_bytes is not None]
    return sum(used) / len(used) if used else None, max(peaks, default=None)


def frame(rows: Iterable[Row], columns: tuple[str, ...]) -> pd.DataFrame:
    """Rows with numbers as fp64, where they are not text."""
    return typed(rows, {name: "object" if name in TEXTS else "float64" for name in columns})


def evaluation_steps(evaluations: pd.DataFrame) -> dict[str, float]:
    """Configuration -> steps between two of its evaluations."""
    return {
        str(name): float(np.median(np.diff(np.unique([0.0, *rows.steps]))))
        for name, rows in evaluations.groupby("configuration", sort=False)
    }


def rounding(ours: pd.DataFrame, every: dict[str, float]) -> float:
    """The standard deviation of the logarithm of what takes a target, by evaluations alone: it was reached at some time
    since the one before, and each moment is as likely. `ours`: rows of COLUMNS; `every`: of evaluation_steps."""
    between = ours.configuration.map(every) / ours.target_steps
    return float((between / math.sqrt(12)).mean()) if between.notna().any() else 0.0
