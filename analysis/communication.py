"""What a worker hands to collectives in one step, by kind, counted at the call: docs/record.md, communication_bytes.

With p bytes of fp32 parameters an allreduce hands over p, in fp16 p/2. FSDP gathers the parameters twice and reduces
the gradients once: 3p, and with fp16 gradients 2p + p/2 = 5/6 of it. ZeRO-1 and -2 send the new parameters once: 3/4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import comparable, notes
from analysis.as_rows import as_rows
from analysis.baseline import BATCH_KEYS, known, values_of
from analysis.configurations import KEYS
from analysis.layout import Listing
from analysis.memory import megabytes, one_batch
from analysis.once import once
from analysis.over_ranks import COMMUNICATION_COLUMNS
from analysis.results import Results

ALIKE = tuple(key for key in KEYS if key not in ("allreduce", *BATCH_KEYS))  # the size of a batch sends no byte
COLUMNS = (
    *("configuration", "series", "series_order", "framework", "zero_stage", "workers", "allreduce", "batch"),
    *(*COMMUNICATION_COLUMNS, "communication_bytes", "of_fp32", "bytes_per_parameter", "parity"),
)


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row of COLUMNS for each configuration of one model that was measured with more than one worker.

    `of_fp32` is the ratio to the fp32 row of the same framework, otherwise the same; None where there is none.
    """
    parallel = [row for row in as_rows(rows) if row["n"] and row["workers"] > 1]
    full: dict[tuple[Any, ...], int] = {}
    for row in parallel:
        if row["allreduce"] == "fp32" and known(row["communication_bytes"]):
            full.setdefault(values_of(row, ALIKE), int(row["communication_bytes"]))
    made = [row | _ratios(row, full.get(values_of(row, ALIKE))) for row in parallel]
    frame = pd.DataFrame(made, columns=list(COLUMNS), dtype=object)
    return frame.sort_values(["series_order", "batch"], kind="stable", ignore_index=True)


@once
def measured(results: Results, model: str) -> pd.DataFrame:
    """table() of one model of a study."""
    return table(results.frame_of(model))


@once
def listing(results: Results, model: str) -> Listing | None:
    """A row for each series; None where there is nothing to send."""
    ours = results.frame_of(model)
    made = one_batch(measured(results, model))
    if made.empty or made.communication_bytes.isna().all():
        return None
    signs = {row["configuration"]: comparable.sign(row) for row in results.rows_of(model)}
    kinds = [name for name in COMMUNICATION_COLUMNS if (made[name].fillna(0) > 0).any()]
    header = ["configuration (MB a worker and step)"]
    header += [name.removeprefix("communication_").removesuffix("_bytes").replace("_", "-") for name in kinds]
    rows = [
        (
            f"{row['series']} {signs[row['configuration']].replace(comparable.HERE_SIGN, '')}".rstrip(),
            *(megabytes(row[kind]) if known(row[kind]) and row[kind] else "" for kind in kinds),
            megabytes(row["communication_bytes"]) or "not counted",
            f"{row['of_fp32']:.3f}" if known(row["of_fp32"]) else "",
            f"{row['bytes_per_parameter']:.2f}" if known(row["bytes_per_parameter"]) else "",
        )
        for row in as_rows(made)
    ]
    legend = [
        "Whole tensors that a worker hands to collectives in one step, counted at the call. What then crosses the wire "
        "is another number: a ring of n workers moves 2 (n-1)/n of an allreduce, (n-1)/n of the others.",
        "Of fp32: against fp32 gradients, otherwise the same. 16-bit gradients make 1/2 of an allreduce; 3/4 where "
        "fp32 parameters are sent once beside them (ZeRO-1, ZeRO-2, OSS), 5/6 where they are gathered twice (FSDP).",
    ]
    if "communication_send_bytes" in kinds:
        legend.append("Send: a pipeline's activations and their gradients, handed to the neighbouring stage.")
    said = [*comparable.sentences(ours, comparable.FAILED_SIGN), *comparable.checked(ours), *legend]
    return Listing(
        f"Communication of {model} by kind ({results.heading})",
        (*header, "sum", "of fp32", "bytes per parameter"), tuple(rows), (*said, notes.source(results)),
    )  # fmt: skip


def _ratios(row: Mapping[Any, Any], full: int | None) -> dict[str, Any]:
    """`full`: what the fp32 row hands over."""
    sent, count = row["communication_bytes"], row["parameters"]
    if not known(sent):
        return {"of_fp32": None, "bytes_per_parameter": None}
    each = int(sent) / int(count) if known(count) and count else None
    return {"of_fp32": int(sent) / full if full else None, "bytes_per_parameter": each}
