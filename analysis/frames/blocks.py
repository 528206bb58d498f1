"""Blocks of launches that configurations took turns in: a row for each, with the mean and the scatter of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.rows import typed
from scaling_study.quoting import printable
from scaling_study.records.store import Record
from scaling_study.stats.launches import together

# `together`: all that were alive at once. `at`: Unix time at which it began. `log_seconds`: of the mean step on the
# slowest rank. `step_variance`: of its steps, relative to that mean; None of a single one.
COLUMNS = ("configuration", "repeat", "together", "round", "at", "steps", "log_seconds", "step_variance")
Row = tuple[Any, ...]


def rows(record: Record) -> list[Row]:
    """Of COLUMNS; none of a trial that had its launch to itself. Raises for what is not whole."""
    if not (record.launch and record.ranks):
        return []
    slowest = max(record.ranks, key=lambda rank: rank.window_seconds)
    seconds, start, found = np.asarray(slowest.step_seconds, dtype=np.float64), 0, list[Row]()
    counts = [int(block["steps"]) for block in slowest.blocks]
    if counts and (min(counts) < 1 or sum(counts) != len(seconds)):
        raise ValueError(f"blocks of {counts} steps are not its {len(seconds)}")
    who = (printable(record.configuration), int(record.trial["repeat"]), together(record.launch))
    for block, count in zip(slowest.blocks, counts, strict=True):
        steps = seconds[start : start + count]
        start += count
        mean = float(steps.mean())
        scatter = float(steps.var(ddof=1)) / mean**2 if len(steps) > 1 else None
        at = float(block.get("at") or math.nan)
        found.append((*who, int(block["round"]), at, len(steps), math.log(mean), scatter))
    return found


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    kinds = dict.fromkeys(COLUMNS) | dict.fromkeys(("repeat", "round", "steps"), "int64")
    kinds |= dict.fromkeys(("at", "log_seconds", "step_variance"), "float64")
    return typed(rows, kinds)
