"""The timeline of a record as a frame: which worker did what, for which stage and micro-batch, from when to when.

    rank's timeline   [0, "forward", 2, 5, 0.131, 0.140]
    row               replica 0, worker 1, rank 1, step 0, forward, stage 2, micro-batch 5, 0.131 s, 0.140 s

Ranks count along one replica after the other (scaling_study/stages/place.py). Where one process drives all of its
pipeline's devices, each stage is a worker. Records older than timelines have no rows.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames.rows import typed
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.quoting import printable
from scaling_study.records.store import RankReport, Record

FORWARD, BACKWARD, INPUT, WEIGHT = KINDS = ("forward", "backward", "backward_input", "backward_weight")
WHOSE = ("configuration", "repeat", "replica", "worker", "rank")
COLUMNS = (*WHOSE, "step", "kind", "stage", "micro_batch", "start_seconds", "end_seconds")
STAGE_COLUMNS = (*WHOSE, "stage", "of", "layers", "parameters", "shared_parameters", "activations_bytes")
INTEGERS = ("repeat", "replica", "worker", "rank", "step", "stage", "micro_batch", "of", "parameters")
Row = tuple[Any, ...]


def of(record: Record) -> pd.DataFrame:
    """COLUMNS, in the order of the ranks. Raises ValueError for an event that is none."""
    return frame(rows(record), COLUMNS)


def stages(record: Record) -> pd.DataFrame:
    """STAGE_COLUMNS: what each rank holds of the model; `activations_bytes` is its peak, all its stages together."""
    return frame(stage_rows(record), STAGE_COLUMNS)


def rows(record: Record) -> list[Row]:
    """The rows of `of`. What a rank notes in two pieces, one right after the other, is one: a forward and its loss."""
    events: list[Row] = []
    for rank in record.ranks:
        before: Row = ()
        for event in rank.timeline:
            step, kind, stage, micro_batch, start, end = event
            if kind not in KINDS or not start <= end:
                raise ValueError(f"rank {rank.rank} has an event that is none: {event}")
            row = (*_whose(record, rank, int(stage)), step, kind, stage, micro_batch)
            if row == before:
                start = events.pop()[-2]
            events.append((*row, start, end))
            before = row
    return events


def stage_rows(record: Record) -> list[Row]:
    """The rows of `stages`."""
    return [
        (
            *_whose(record, rank, int(stage["stage"])),
            *(stage["stage"], stage["of"], printable(", ".join(stage["layers"])), stage["parameters"]),
            *(stage.get("shared_parameters", 0), rank.memory.get("activations")),
        )
        for rank in record.ranks
        for stage in rank.stages
    ]


def frame(rows: list[Row], columns: tuple[str, ...]) -> pd.DataFrame:
    """With types that do not depend on the rows."""
    kinds = {name: "int64" if name in INTEGERS else "float64" for name in columns}
    return typed(rows, kinds | dict.fromkeys(name for name in columns if name in TEXTS))


TEXTS = ("configuration", "kind", "layers")


def _whose(record: Record, rank: RankReport, stage: int) -> Row:
    workers = record.trial.get("stages") or rank.world_size
    table = FRAMEWORKS.get(str(record.trial.get("framework")))
    replica, worker = divmod(rank.rank, workers)
    if table is not None and table.one_process:
        worker = stage % workers
    return printable(record.configuration), record.trial["repeat"], replica, worker, rank.rank
