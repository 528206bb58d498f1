"""Records -> one row a trial: results.csv. Everything here can be derived again from the records at any time.

Throughput of a trial is the samples of all ranks over the window of the slowest rank, never a mean of rates;
its interval is that of the slowest rank's steps. Means over ranks, sums and maxima: docs/reference/columns.md.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.frames import columns, details, measured
from analysis.frames.details import Details
from analysis.frames.measured import Timed
from analysis.frames.rows import typed
from scaling_study.errors import printable
from scaling_study.models import NO_MODEL
from scaling_study.records import schema, store
from scaling_study.records.schema import Record
from scaling_study.records.store import MissingRecord, UnreadableRecord
from scaling_study.stats.launches import LAUNCH_NAME
from scaling_study.study import support

# The verdict of the gates behind a trial: `passed`, the first fault, or `not checked`.
#
# A gate (scaling_study/study/support.py) is a trial with a record of its own. It measures nothing: it is a row of
# results.csv and of nothing else, and its verdict is a column of every trial whose numbers stand or fall with it.

PASSED, NOT_CHECKED, NO_GATE = "passed", "not checked", ""  # NO_GATE: none can stand before it
GATE = "parity"  # what such a trial is to `find`


def own(record: Record) -> str:
    """A gate's own verdict. One that broke down has shown nothing, so it has not passed."""
    if record.parity:
        return record.parity
    if record.status in ("ok", "unsupported", "cancelled"):
        return NOT_CHECKED
    return f"its parity check ended with {record.status}" + (f" ({record.reason})" if record.reason else "")


def behind(record: Record, known: Mapping[str, str]) -> dict[str, Any]:
    """`parity` and `parity_gates` (ids, separated by `;`) of a trial; `known` maps a gate's id to its verdict."""
    try:
        gates = support.gate_ids(record.trial)
        verdict = support.verdict(record.trial, known) if gates else NO_GATE  # of a probe, of a command
        return {"parity": verdict, "parity_gates": ";".join(gates)}
    except (AttributeError, KeyError, TypeError):  # a framework or model that this version does not have
        return {"parity": NOT_CHECKED, "parity_gates": ""}


RECORD = "record.json"
NOT_WHOLE = (TypeError, ValueError, AttributeError, KeyError)  # what a record of the right shape, but wrong, raises


class SkippedRecord(UserWarning):
    """A record that was left out, named, because it could not be read."""


def read(results: Path, collect: Callable[[Record], None] | None = None) -> tuple[pd.DataFrame, Details]:
    """Every finished trial under `results` as columns.TRIALS, by id, and the details of their records.

    `collect` is given every record that can be read, including those that are skipped. Warns SkippedRecord of what
    cannot be read.
    """
    rows, timed = dict[str, dict[str, Any]](), dict[str, Timed]()  # by folder
    beside = list[dict[str, list[measured.Row]]]()
    firsts = dict[str, Record]()  # of each configuration but those of gates, without what its ranks measured
    for folder in _folders(results / "trials"):
        try:
            record, name = store.read_trial(folder), folder.name
            if collect is not None:
                collect(record)
            row, window = _row(record)
            if row["find"] != GATE:
                beside.append(details.details_of(record))
                if row["configuration"] not in firsts:
                    firsts[row["configuration"]] = replace(record, ranks=[])
            rows[name] = row
            if window is not None:
                timed[name] = window
        except MissingRecord:
            continue  # not finished
        except UnreadableRecord as error:
            warnings.warn(f"skipped: {error}", SkippedRecord, stacklevel=2)
        except NOT_WHOLE as error:
            warnings.warn(f"skipped: {folder / RECORD} is not whole: {error}", SkippedRecord, stacklevel=2)
    within = measured.intervals(list(timed.values()), [rows[name]["reason"] for name in timed])
    for name, interval in zip(timed, within, strict=True):
        rows[name] |= interval
    verdicts = {row["trial"]: row["parity"] for row in rows.values() if row["find"] == GATE}
    parity = {configuration: behind(record, verdicts) for configuration, record in firsts.items()}
    for row in rows.values():
        row |= parity[row["configuration"]] if row["find"] != GATE else {}
    try:
        return frame(rows.values()), details.gathered(beside)
    except NOT_WHOLE:  # a value of the wrong type somewhere: find whose, which is too slow to do every time
        fitting = (row for name, row in rows.items() if _fits(row, results / "trials" / name / RECORD))
        return frame(fitting), details.gathered(beside)


def _folders(trials: Path) -> list[Path]:
    """The folders of all trials, by id; none is opened."""
    try:
        with os.scandir(trials) as entries:
            return [trials / name for name in sorted(entry.name for entry in entries if entry.is_dir())]
    except FileNotFoundError:
        return []


def frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows -> columns.TRIALS with types that do not depend on which trials there are: whole numbers stay whole."""
    return typed(rows, columns.dtypes(columns.TRIALS))


def _fits(row: dict[str, Any], path: Path) -> bool:
    try:
        frame([row])
    except NOT_WHOLE as error:
        warnings.warn(f"skipped: {path} is not whole: {error}", SkippedRecord, stacklevel=3)
        return False
    return True


def row(record: Record) -> dict[str, Any]:
    """One trial as a mapping of columns.TRIALS. Raises ValueError if it says ok and holds nothing measured.

    `reason` of a trial that is ok says "too short" where its interval within the run should not be relied on.
    `parity` is the verdict of a gate itself; of any other trial it takes the records of its gates (read).
    """
    made, timed = _row(record)
    return made | (measured.intervals([timed], [made["reason"]])[0] if timed else {})


def _row(record: Record) -> tuple[dict[str, Any], Timed | None]:
    """The row without what its interval says, and what that is worked out from."""
    result: dict[str, Any] = dict.fromkeys(column.name for column in columns.TRIALS) | record.trial.to_dict()
    result |= {
        "study": record.study,
        "trial": record.id,
        "configuration": record.configuration,
        "status": record.status,
        "reason": record.reason,
        "error": record.error,
        "launch_seconds": record.launch_seconds,
        "started_at": record.started_at,
        "launch": record.launch if LAUNCH_NAME.fullmatch(record.launch) else None,
        "planned_repeats": record.planned_repeats,
        "max_batch": record.found.get("max_batch"),
        "rounds_failed": measured.failed(record),
    }
    if result["find"] == GATE:
        result["parity"] = own(record)
    if record.status not in schema.STATUSES:
        raise ValueError(f"status {record.status!r} is none of {', '.join(schema.STATUSES)}")
    for key in ("workers", "batch_per_worker"):
        if isinstance(value := result[key], int) and value < 1:
            raise ValueError(f"{key} is {value}")
    timed = None
    if record.status == "ok":
        if not record.ranks or any(not rank.step_seconds for rank in record.ranks):
            raise ValueError("status is ok, but not every rank has timed steps")
        if result["model"] == NO_MODEL:  # a probe: that it was alone is all that its ranks say here
            result["busy_elsewhere_cores"] = schema.busy_elsewhere_cores(record.ranks)
        else:
            worked_out, timed = measured.measured(record)
            read = {column.name: column.of_ranks(record.ranks) for column in columns.TRIALS if column.read_from_ranks}
            result |= read | worked_out
            if result["warm"]:  # its process holds what others need too
                result["resident_bytes"] = None
    for name, value in result.items():
        if isinstance(value, str) and not value.isprintable():
            result[name] = printable(value, but="\n\t" * (name == "error"))
    return result, timed


def began(trials: pd.DataFrame) -> pd.Series[pd.Timestamp]:
    """The start of each of these (UTC); NaT where it is not known."""
    return pd.to_datetime(trials.started_at, utc=True, errors="coerce", format="ISO8601")
