"""What each rank's record says of where its steps went and of what its device can do: one row a rank.

    seconds of its phases, of a timed and of an instrumented step; FLOPs of a sample; its device's measured peaks;
    what its worker costs

Ranks are kept apart because waiting for the slowest is only seen between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.frames.over_ranks import PHASES
from analysis.frames.rows import typed
from scaling_study.quoting import printable
from scaling_study.records.store import Record

PHASE_COLUMNS = tuple(f"{name}_seconds" for name in PHASES)
NUMBERS = (
    *("step_seconds", "instrumented_seconds", *PHASE_COLUMNS),
    *("forward_flops_per_sample", "peak_flops_per_second", "peak_bytes_per_second", "tf32", "price_per_worker_hour"),
)
COLUMNS = ("configuration", "repeat", "rank", *NUMBERS)
Row = tuple[Any, ...]


def rows(record: Record) -> list[Row]:
    """One row for each rank, in the order of COLUMNS; what is unknown is None.

    `step_seconds`: mean of its timed steps; `instrumented_seconds`: of those whose phases were timed.
    """
    who, price = (printable(record.configuration), int(record.trial["repeat"])), _price(record.machine_file)
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


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """COLUMNS, with types that do not depend on which rows there are."""
    kinds = dict.fromkeys(COLUMNS) | dict.fromkeys(("repeat", "rank"), "int64") | dict.fromkeys(NUMBERS, "float64")
    return typed(rows, kinds)


def _price(machine_file: dict[str, Any]) -> float | None:
    """What a worker costs for an hour, as its machine file said; None where it said nothing, or nothing usable."""
    price = machine_file.get("price_per_worker_hour")
    usable = isinstance(price, int | float) and not isinstance(price, bool) and math.isfinite(price) and price >= 0
    return float(price) if usable else None  # type: ignore[arg-type]
