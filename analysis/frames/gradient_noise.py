"""Squared norms of gradients at two batch sizes, step by step: what trainings noted of them, as a frame.

Rank 0's training["noise"] is {"small_batch": b, "big_batch": B, "every": k, "rows": [[step, small_sqr, big_sqr], ...]},
or {"unknown": why} where a framework shows no rank's own gradients; absent in older records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from analysis.frames.rows import typed
from analysis.frames.timeline import Row
from scaling_study.quoting import printable
from scaling_study.records.store import Record

COLUMNS = (
    *("configuration", "repeat", "seed", "step", "small_batch", "big_batch", "small_sqr", "big_sqr"),
    "unknown",
)
TEXTS = ("configuration", "unknown")


def rows(record: Record) -> list[Row]:
    """A row for each step that was noted, or one that says why there is none. Steps whose norms are no numbers, as of a
    training that diverged, are left out. Raises KeyError, TypeError or ValueError for what is not whole."""
    training = record.ranks[0].training if record.ranks else {}
    noise = training.get("noise")
    if noise is None:
        return []
    if not isinstance(noise, dict):
        raise ValueError("training.noise is no mapping")
    who = (printable(record.configuration), int(record.trial["repeat"]), int(record.trial["seed"]))
    if "unknown" in noise:
        nothing = (math.nan,) * 5
        return [(*who, *nothing, printable(str(noise["unknown"])))]
    batches = float(noise["small_batch"]), float(noise["big_batch"])
    if not 0 < batches[0] < batches[1] < math.inf:
        raise ValueError(f"training.noise: small_batch {batches[0]:g} is not below big_batch {batches[1]:g}")
    noted = [(float(step), small, big) for step, small, big in noise["rows"] if small is not None and big is not None]
    made = [(*who, step, *batches, float(small), float(big), "") for step, small, big in noted]
    return [row for row in made if math.isfinite(row[6]) and math.isfinite(row[7])]


def frame(made: Iterable[Row]) -> pd.DataFrame:
    """COLUMNS, numbers as fp64."""
    return typed(made, {name: "object" if name in TEXTS else "float64" for name in COLUMNS})
