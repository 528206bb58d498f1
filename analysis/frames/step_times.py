"""How the timed steps of each run were spread: some order statistics of its slowest rank, whose window counts.

Quantiles and not the samples: ten thousand runs of thousands of steps stay small. Every sample is in samples.npz.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.frames.rows import typed
from scaling_study.quoting import printable
from scaling_study.records.store import Record

QUANTILES = {"least": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "most": 1.0}
COLUMNS = ("configuration", "repeat", "steps", *(f"{name}_seconds" for name in QUANTILES))
Row = tuple[Any, ...]


def rows(record: Record) -> list[Row]:
    """One of COLUMNS; none of a run without timed steps. Quantiles are steps that there were, none in between."""
    slowest = max(record.ranks, key=lambda rank: rank.window_seconds).ordered_seconds if record.ranks else []
    if not slowest:
        return []
    last = len(slowest) - 1
    return [
        (
            *(printable(record.configuration), int(record.trial["repeat"]), len(slowest)),
            *(slowest[round(share * last)] for share in QUANTILES.values()),
        )
    ]


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """COLUMNS, with types that do not depend on which rows there are."""
    kinds = dict.fromkeys(COLUMNS) | dict.fromkeys(COLUMNS[3:], "float64") | dict.fromkeys(("repeat", "steps"), "int64")
    return typed(rows, kinds)
