"""A probe's record as rows: one for each collective, size and state of the cores.

A call has taken as long as its slowest rank: the ranks' seconds are folded call by call, before any mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.frames.rows import typed
from scaling_study.quoting import printable
from scaling_study.records.store import Record
from scaling_study.stats.collectives import COLLECTIVES
from scaling_study.stats.intervals import within_run

Row = tuple[object, ...]
SECONDS = ("seconds", "seconds_low", "seconds_high", "seconds_min", "seconds_max")
COLUMNS = ("configuration", "repeat", "collective", "busy", "bytes", "calls", *SECONDS)


def rows(record: Record) -> list[Row]:
    """COLUMNS, with the mean seconds of a call, its interval within the run, the fastest and the slowest call.

    Raises KeyError, TypeError or ValueError for what is not whole.
    """
    return [_row(record, index) for index in range(len(record.ranks[0].network))] if record.ranks else []


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """COLUMNS, with types that do not depend on which rows there are."""
    kinds = dict.fromkeys(COLUMNS) | dict.fromkeys(SECONDS, "float64")
    return typed(rows, kinds | {"repeat": "int64", "busy": "bool", "bytes": "int64", "calls": "int64"})


def _row(record: Record, index: int) -> Row:
    ours = [rank.network[index] for rank in record.ranks]
    calls = [max(map(float, each)) for each in zip(*(row["seconds"] for row in ours), strict=True)]
    first, mean = ours[0], within_run(calls)
    if first["collective"] not in COLLECTIVES or mean.mean <= 0:
        raise ValueError(f"row {index} of the network is of no collective, or took no time")
    return (
        *(printable(record.configuration), int(record.trial["repeat"])),
        *(first["collective"], bool(first["busy"]), int(first["bytes"]), len(calls)),
        *(mean.mean, mean.low, mean.high, min(calls), max(calls)),
    )
