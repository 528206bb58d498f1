"""What a worker hands to collectives in one step, by kind, counted at the call: docs/record.md, communication_bytes.

With p bytes of fp32 parameters an allreduce hands over p, in fp16 p/2. FSDP gathers the parameters twice and reduces
the gradients once: 3p, and with fp16 gradients 2p + p/2 = 5/6 of it. ZeRO-1 and -2 send the new parameters once: 3/4.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames.baseline import BATCH_KEYS, known, values_of
from analysis.frames.cache import once
from analysis.frames.configurations import KEYS
from analysis.frames.over_ranks import COMMUNICATION_COLUMNS
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows

ALIKE = tuple(key for key in KEYS if key not in ("allreduce", *BATCH_KEYS))  # the size of a batch sends no byte
COLUMNS = (
    *("configuration", "series", "series_order", "framework", "zero_stage", "workers", "allreduce", "batch"),
    *(*COMMUNICATION_COLUMNS, "communication_bytes", "of_fp32", "bytes_per_parameter", "carrier", "overlap", "parity"),
)


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row of COLUMNS for each configuration of one model that was measured with more than one worker.

    `of_fp32` is the ratio to the fp32 row of the same framework, otherwise the same; None where there is none.
    """
    parallel = [row for row in as_rows(rows, ConfigurationRow) if row["n"] and row["workers"] > 1]
    full: dict[tuple[Any, ...], int] = {}
    for row in parallel:
        if row["allreduce"] == "fp32" and known(row["communication_bytes"]):
            full.setdefault(values_of(row, ALIKE), int(row["communication_bytes"]))
    with_ratios = [{**row, **_ratios(row, full.get(values_of(row, ALIKE)))} for row in parallel]
    frame = pd.DataFrame(with_ratios, columns=list(COLUMNS), dtype=object)
    return frame.sort_values(["series_order", "batch"], kind="stable", ignore_index=True)


@once
def measured(results: Results, model: str) -> pd.DataFrame:
    """table() of one model of a study."""
    return table(results.frame_of(model))


def _ratios(row: ConfigurationRow, full: int | None) -> dict[str, Any]:
    """`full`: what the fp32 row hands over."""
    sent, count = row["communication_bytes"], row["parameters"]
    if not known(sent):
        return {"of_fp32": None, "bytes_per_parameter": None}
    each = int(sent) / int(count) if known(count) and count else None
    return {"of_fp32": int(sent) / full if full else None, "bytes_per_parameter": each}
