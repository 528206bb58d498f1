"""What records hold that no column of results.csv could, as frames: timelines, stages, epochs, notes, step times, ...

Of every trial that is ok and is no gate; each frame begins with the `configuration` and the `repeat` it is of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import pandas as pd

from analysis.frames import blocks, gradient_noise, network, ranks, rounds, step_times, trained
from analysis.frames import run_facts as facts
from analysis.frames import timeline as events
from analysis.frames.rows import typed
from analysis.frames.timeline import Row
from scaling_study.quoting import printable
from scaling_study.records.store import Record

EPOCH_COLUMNS = (
    *("configuration", "repeat", "rank", "warmup", "steps", "samples"),
    *("data_seconds", "training_seconds", "running_seconds", "learning_rate"),
)
NOTE_COLUMNS = ("configuration", "repeat", "note")


@dataclass(frozen=True)
class Rows:
    """The rows of one record."""

    events: list[Row]
    stages: list[Row]
    epochs: list[Row]
    notes: list[Row]
    network: list[Row]
    facts: list[Row]
    ranks: list[Row]
    steps: list[Row]
    trained: list[Row]
    evaluations: list[Row]
    noise: list[Row]
    rounds: list[Row]
    blocks: list[Row]


@dataclass(frozen=True)
class Details:
    """The frames of a study: events.COLUMNS, events.STAGE_COLUMNS, EPOCH_COLUMNS, NOTE_COLUMNS, network.COLUMNS,
    facts.COLUMNS, why.ranks.COLUMNS, step_times.COLUMNS, trained.COLUMNS, trained.EVALUATION_COLUMNS,
    gradient_noise.COLUMNS, rounds.COLUMNS, blocks.COLUMNS."""

    events: pd.DataFrame
    stages: pd.DataFrame
    epochs: pd.DataFrame
    notes: pd.DataFrame
    network: pd.DataFrame
    facts: pd.DataFrame
    ranks: pd.DataFrame
    steps: pd.DataFrame
    trained: pd.DataFrame
    evaluations: pd.DataFrame
    noise: pd.DataFrame
    rounds: pd.DataFrame
    blocks: pd.DataFrame


def of(record: Record) -> Rows:
    """Raises KeyError, TypeError or ValueError for what is not whole."""
    who = (printable(record.configuration), int(record.trial["repeat"]))
    epochs: list[Row] = [
        (
            *(*who, rank.rank, bool(epoch["warmup"]), int(epoch["steps"]), int(epoch["samples"])),
            *(float(epoch[f"{part}_seconds"]) for part in ("data", "training", "running")),
            rank.learning_rate,
        )
        for rank in record.ranks
        for epoch in rank.epochs
    ]
    remarks = dict.fromkeys(note for rank in record.ranks for note in rank.notes)
    notes: list[Row] = [(*who, printable(note)) for note in remarks]
    staged = events.rows(record), events.stage_rows(record)
    measured = facts.rows(record), ranks.rows(record), step_times.rows(record)
    learned = *trained.rows(record), gradient_noise.rows(record)
    return Rows(
        *staged, epochs, notes, network.rows(record), *measured, *learned, rounds.rows(record), blocks.rows(record)
    )


def gathered(many: Iterable[Rows]) -> Details:
    """One frame of each kind, empty where no record has any."""
    every = list(many)
    rows = {f.name: [row for part in every for row in getattr(part, f.name)] for f in fields(Rows)}
    kinds = dict.fromkeys(EPOCH_COLUMNS) | dict.fromkeys(("repeat", "rank", "steps", "samples"), "int64")
    kinds |= {"warmup": "bool"} | dict.fromkeys(EPOCH_COLUMNS[6:], "float64")
    return Details(
        events.frame(rows["events"], events.COLUMNS),
        events.frame(rows["stages"], events.STAGE_COLUMNS),
        typed(rows["epochs"], kinds),
        pd.DataFrame(rows["notes"], columns=list(NOTE_COLUMNS)),
        network.frame(rows["network"]),
        facts.frame(rows["facts"]),
        ranks.frame(rows["ranks"]),
        step_times.frame(rows["steps"]),
        trained.frame(rows["trained"], trained.COLUMNS),
        trained.frame(rows["evaluations"], trained.EVALUATION_COLUMNS),
        gradient_noise.frame(rows["noise"]),
        rounds.frame(rows["rounds"]),
        blocks.frame(rows["blocks"]),
    )


def none() -> Details:
    return gathered([])
