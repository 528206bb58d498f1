"""Records -> one row a trial: results.csv. Everything here can be derived again from the records at any time.

Throughput of a trial is the samples of all ranks over the window of the slowest rank, never a mean of rates;
its interval is that of the slowest rank's steps. Means over ranks, sums and maxima are as docs/record.md says.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import details, parity
from analysis.details import Details
from analysis.over_ranks import COMMUNICATION_COLUMNS, MEMORY_COLUMNS, PHASES, measured
from scaling_study import records
from scaling_study.quoting import printable
from scaling_study.records import Record, UnreadableRecord
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


NOT_WHOLE = (TypeError, ValueError, AttributeError, KeyError)  # what a record of the right shape, but wrong, raises


class SkippedRecord(UserWarning):
    """A record that was left out, named, because it could not be read."""


def read(results: Path) -> pd.DataFrame:
    """Every finished trial under `results` as COLUMNS, by id. Warns SkippedRecord of what cannot be read."""
    return read_whole(results)[0]


def read_whole(results: Path) -> tuple[pd.DataFrame, Details]:
    """The same, and what their records hold beside it."""
    rows: dict[Path, dict[str, Any]] = {}
    training: dict[Path, Record] = {}
    beside: list[details.Rows] = []
    for path in sorted((results / "trials").glob("*/record.json")):
        try:
            record = records.read_trial(path.parent)
            made = row(record)
            if made["find"] != parity.GATE:
                beside.append(details.of(record))
                training[path] = replace(record, ranks=[])  # of all, at once: not every step of every rank
            rows[path] = made
        except UnreadableRecord as error:
            warnings.warn(f"skipped: {error}", SkippedRecord, stacklevel=2)
        except NOT_WHOLE as error:
            warnings.warn(f"skipped: {path} is not whole: {error}", SkippedRecord, stacklevel=2)
    verdicts = {row["trial"]: row["parity"] for path, row in rows.items() if path not in training}
    said: dict[str, dict[str, Any]] = {}  # of a configuration: the same for all its repeats
    for path, record in training.items():
        if record.configuration not in said:
            said[record.configuration] = parity.behind(record, verdicts)
        rows[path] |= said[record.configuration]
    found = details.gathered(beside)
    try:
        return frame(rows.values()), found
    except NOT_WHOLE:  # a value of the wrong type somewhere: find whose, which is too slow to do every time
        return frame(row for path, row in rows.items() if _fits(row, path)), found


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
    said = _row(record).items()  # some of it in the words of ranks
    return {key: printable(v, but="\n\t" * (key == "error")) if isinstance(v, str) else v for key, v in said}


def _row(record: Record) -> dict[str, Any]:
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
    if record.status != "ok":
        return result
    if not record.ranks or any(not rank.step_seconds for rank in record.ranks):
        raise ValueError("status is ok, but not every rank has timed steps")
    return result | measured(record)
