"""Records -> one row a trial: results.csv. Everything here can be derived again from the records at any time.

Throughput of a trial is the samples of all ranks over the window of the slowest rank, never a mean of rates;
its interval is that of the slowest rank's steps. Means over ranks, sums and maxima are as docs/record.md says.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import details, over_ranks, parity
from analysis.details import Details
from analysis.over_ranks import COMMUNICATION_COLUMNS, MEMORY_COLUMNS, PHASES, Timed
from scaling_study import records
from scaling_study.quoting import printable
from scaling_study.reading import MissingRecord, UnreadableRecord
from scaling_study.records import Record
from scaling_study.trial import Trial

TRIAL_KEYS = tuple(Trial().to_dict())
LATER_KEYS = {key: value for key, value in Trial().to_dict().items() if key != "global_batch"}  # of older records
TEXTS = (
    *("study", "trial", "configuration", "status", "reason", "data_source"),
    *("parity", "parity_gates", "started_at", "error"),
)
INTEGERS = (
    "planned_repeats",
    "max_batch",
    "steps",
    "parameters",
    "samples_seen",
    "allreduce_bytes",
    "communication_bytes",
    *COMMUNICATION_COLUMNS,
    "peak_memory_bytes",
    *MEMORY_COLUMNS,
)
COLUMNS = (
    *("study", "trial", "configuration", *TRIAL_KEYS, "status", "reason"),
    *("samples_per_second", "tokens_per_second", "interval_low", "interval_high"),
    *("steps", "step_seconds_mean", "step_seconds_median", *(f"{phase}_seconds" for phase in PHASES)),
    *("launch_seconds", "parameters", "samples_seen", "allreduce_bytes", "communication_bytes"),
    *(*COMMUNICATION_COLUMNS, "peak_memory_bytes", *MEMORY_COLUMNS),
    *("gpu_utilization_percent", "energy_joules", "loss_first", "loss_last", "data_source", "parity", "parity_gates"),
    *("started_at", "error", "planned_repeats", "busy_elsewhere_cores", "max_batch"),
)


RECORD = "record.json"
AT_ONCE = 1000  # trials whose intervals are worked out together
NOT_WHOLE = (TypeError, ValueError, AttributeError, KeyError)  # what a record of the right shape, but wrong, raises
WORDS = (*TEXTS, *TRIAL_KEYS)  # columns that may hold the words of others


class SkippedRecord(UserWarning):
    """A record that was left out, named, because it could not be read."""


def read(results: Path) -> pd.DataFrame:
    """Every finished trial under `results` as COLUMNS, by id. Warns SkippedRecord of what cannot be read."""
    return read_whole(results)[0]


def read_whole(results: Path) -> tuple[pd.DataFrame, Details]:
    """The same, and what their records hold beside it."""
    rows: dict[Path, dict[str, Any]] = {}
    firsts: dict[str, Record] = {}  # of each configuration, without what its ranks measured
    training: dict[Path, str] = {}
    beside: list[details.Rows] = []
    timed: dict[Path, Timed] = {}
    for folder in _folders(results / "trials"):
        try:
            record = records.read_trial(folder)
            made, window = _row(record)
            if made["find"] != parity.GATE:
                beside.append(details.of(record))
                training[folder] = record.configuration
                if record.configuration not in firsts:
                    firsts[record.configuration] = replace(record, ranks=[])
            rows[folder] = made
            if window is not None:
                timed[folder] = window
        except MissingRecord:
            continue  # not finished
        except UnreadableRecord as error:
            warnings.warn(f"skipped: {error}", SkippedRecord, stacklevel=2)
        except NOT_WHOLE as error:
            warnings.warn(f"skipped: {folder / RECORD} is not whole: {error}", SkippedRecord, stacklevel=2)
        if len(timed) >= AT_ONCE:
            _add_intervals(rows, timed)
    _add_intervals(rows, timed)
    verdicts = {row["trial"]: row["parity"] for folder, row in rows.items() if folder not in training}
    said = {name: parity.behind(record, verdicts) for name, record in firsts.items()}
    for folder, name in training.items():
        rows[folder] |= said[name]
    found = details.gathered(beside)
    try:
        return frame(rows.values()), found
    except NOT_WHOLE:  # a value of the wrong type somewhere: find whose, which is too slow to do every time
        return frame(row for folder, row in rows.items() if _fits(row, folder / RECORD)), found


def _folders(trials: Path) -> list[Path]:
    """Of every trial, by its id; without looking into them."""
    try:
        with os.scandir(trials) as entries:
            return [trials / name for name in sorted(entry.name for entry in entries if entry.is_dir())]
    except FileNotFoundError:
        return []


def _add_intervals(rows: Mapping[Path, dict[str, Any]], timed: dict[Path, Timed]) -> None:
    """Into the rows of these trials, which are then forgotten."""
    found = over_ranks.intervals(list(timed.values()), [rows[folder]["reason"] for folder in timed])
    for folder, columns in zip(timed, found, strict=True):
        rows[folder] |= columns
    timed.clear()


def frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows -> COLUMNS with types that do not depend on which trials there are: whole numbers stay whole."""
    kinds = {f.name: str(f.type).removesuffix(" | None") for f in fields(Trial)}
    kinds |= {"global_batch": "int"} | dict.fromkeys(INTEGERS, "int") | dict.fromkeys(TEXTS, "str")
    dtypes = {"int": "Int64", "bool": "boolean", "str": "string", "float": "float64"}
    columns = pd.DataFrame(list(rows), columns=list(COLUMNS), dtype=object)
    return columns.astype({name: dtypes[kinds.get(name, "float")] for name in COLUMNS})


def _fits(row: dict[str, Any], path: Path) -> bool:
    try:
        frame([row])
    except NOT_WHOLE as error:
        warnings.warn(f"skipped: {path} is not whole: {error}", SkippedRecord, stacklevel=3)
        return False
    return True


def row(record: Record) -> dict[str, Any]:
    """One trial as a mapping of COLUMNS. Raises ValueError if it says ok and holds nothing measured.

    `reason` of a trial that is ok says "too short" where its interval within the run should not be relied on.
    `parity` is the verdict of a gate itself; of any other trial it takes the records of its gates (read).
    """
    made, timed = _row(record)
    return made | (over_ranks.intervals([timed], [made["reason"]])[0] if timed else {})


def _row(record: Record) -> tuple[dict[str, Any], Timed | None]:
    """The row without what its interval says, and what that is worked out from."""
    known = LATER_KEYS | record.trial
    result = dict.fromkeys(COLUMNS) | {key: known.get(key) for key in TRIAL_KEYS}
    result |= {"study": record.study, "trial": record.id, "configuration": record.configuration}
    result |= {"status": record.status, "reason": record.reason, "error": record.error}
    result |= {"launch_seconds": record.launch_seconds, "started_at": record.started_at}
    result |= {"planned_repeats": record.planned_repeats}
    result["max_batch"] = record.found.get("max_batch")
    if result["find"] == parity.GATE:
        result["parity"] = parity.own(record)
    if record.status not in records.STATUSES:
        raise ValueError(f"status {record.status!r} is none of {', '.join(records.STATUSES)}")
    timed = None
    if record.status == "ok":
        if not record.ranks or any(not rank.step_seconds for rank in record.ranks):
            raise ValueError("status is ok, but not every rank has timed steps")
        columns, timed = over_ranks.measured(record)
        result |= columns
    for key in WORDS:
        if isinstance(value := result[key], str) and not value.isprintable():
            result[key] = printable(value, but="\n\t" * (key == "error"))
    return result, timed
