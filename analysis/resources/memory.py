"""Memory of a worker by kind, and what sharding saves of it, measured beside what it should.

What a worker holds of parameters P, gradients G and optimiser state O with n workers (Rajbhandari et al., "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054):

    replicated   P + G + O            DDP, Horovod
    ZeRO-1       P + G + O/n          the optimiser state is sharded
    ZeRO-2       P + (G + O)/n        and the gradients
    ZeRO-3       (P + G + O)/n        and the parameters: FSDP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.frames import comparability
from analysis.frames.baseline import known, same, value_of
from analysis.frames.cache import once
from analysis.frames.over_ranks import MEMORY_COLUMNS
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows
from scaling_study.frameworks import FRAMEWORKS

STATE = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
REFERENCES = ("torch_ddp", "horovod", "single")  # the first that was measured; none of them shards anything
COLUMNS = (
    *("configuration", "series", "series_order", "framework", "zero_stage", "workers", "batch", *MEMORY_COLUMNS),
    *("peak_memory_bytes", "state_bytes", "reference", "saved", "theory", "parity"),
)


class Memory(ConfigurationRow):
    """A configuration with what a worker holds of parameters, gradients and optimiser."""

    state_bytes: int


def stage_of(row: ConfigurationRow) -> int | None:
    """What a configuration shards, 0 to 3: as asked for, or as its framework does by itself; None where unknown."""
    if known(row["zero_stage"]):
        return int(row["zero_stage"])
    framework = FRAMEWORKS.get(str(row["framework"]))
    return None if framework is None or framework.cuts_model else framework.shards


def held(state: Sequence[float], stage: int, workers: int) -> float:
    """Bytes of `state` (parameters, gradients, optimiser) that a worker holds, in theory."""
    first_sharded = {0: 3, 1: 2, 2: 1, 3: 0}[stage]
    return sum(size / workers if index >= first_sharded else size for index, size in enumerate(state))


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row of COLUMNS for each configuration of one model that was measured.

    `state_bytes` are parameters, gradients and optimiser; `saved` is their share that is missing against those of
    `reference`, and `theory` what that share should be. Both are None where there is nothing to compare with.
    """
    measured = [row for row in as_rows(rows, Memory) if row["n"] and known(value_of(row, MEMORY_COLUMNS[0]))]
    for row in measured:
        row["state_bytes"] = sum(int(size) for kind in STATE if known(size := value_of(row, kind)))
    with_savings = [{**row, **_saved(row, measured)} for row in measured]
    frame = pd.DataFrame(with_savings, columns=list(COLUMNS), dtype=object)
    return frame.sort_values(["series_order", "batch"], kind="stable", ignore_index=True)


@once
def measured(results: Results, model: str) -> pd.DataFrame:
    """table() of one model of a study."""
    return table(results.frame_of(model))


def one_batch(frame: pd.DataFrame) -> pd.DataFrame:
    """Each series once: at the batch size that most series have (the largest of several), else at its own largest."""
    if frame.empty:
        return frame
    count = frame.groupby("batch").series.nunique()
    common = max(count.index, key=lambda batch: (count[batch], batch))
    nearest = frame.assign(common=frame.batch == common).sort_values(
        ["common", "batch"], ascending=False, kind="stable"
    )
    return nearest.drop_duplicates("series").sort_values("series_order", ignore_index=True).drop(columns="common")


def _saved(row: Memory, among: Sequence[Memory]) -> dict[str, Any]:
    right = [r for r in among if not comparability.failed(r) and same(r["precision"], row["precision"])]
    names = [name for name in REFERENCES if any(r["framework"] == name for r in right)]
    if not names:
        return {"reference": None, "saved": None, "theory": None}
    near = ("workers", "batch_per_worker", "allreduce", "accumulation", "compile")

    def likeness(other: Memory) -> tuple[bool, ...]:
        return tuple(same(value_of(other, key), value_of(row, key)) for key in near)

    reference = max((r for r in right if r["framework"] == names[0]), key=likeness)
    whole, stage = reference["state_bytes"], stage_of(row)
    should = (
        None
        if stage is None
        else held([float(value_of(reference, kind)) for kind in STATE], stage, int(row["workers"]))
    )
    return {
        "reference": names[0],
        "saved": 1 - row["state_bytes"] / whole,
        "theory": None if should is None else 1 - should / whole,
    }
