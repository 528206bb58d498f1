"""Records -> one row a trial: results.csv. Everything here can be derived again from the records at any time.

Throughput of a trial is the samples of all ranks over the window of the slowest rank, never a mean of rates;
its interval is that of the slowest rank's steps. Means over ranks, sums and maxima are as docs/record.md says.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, Self

import pandas as pd

from analysis import execution
from analysis.frames import details, measured
from analysis.frames.details import Details
from analysis.frames.measured import COMMUNICATION_COLUMNS, MEMORY_COLUMNS, PHASE_COLUMNS, Timed
from analysis.frames.rows import typed
from scaling_study.errors import printable
from scaling_study.records import store
from scaling_study.records.store import MissingRecord, Record, UnreadableRecord
from scaling_study.stats.launches import LAUNCH_NAME
from scaling_study.study import support
from scaling_study.trial import Trial

# What the gates behind a trial say of it: `passed`, the first fault, or `not checked`.
#
# A gate (scaling_study/study/support.py) is a trial with a record of its own. It measures nothing: it is a row of
# results.csv and of nothing else, and its verdict is a column of every trial whose numbers stand or fall with it.

PASSED, NOT_CHECKED = "passed", "not checked"
GATE = "parity"  # what such a trial is to `find`


def own(record: Record) -> str:
    """A gate's own verdict. One that broke down has shown nothing, so it has not passed."""
    if record.parity:
        return record.parity
    if record.status in ("ok", "unsupported", "cancelled"):
        return NOT_CHECKED
    return f"its gate ended with {record.status}" + (f" ({record.reason})" if record.reason else "")


def behind(record: Record, known: Mapping[str, str]) -> dict[str, Any]:
    """`parity` and `parity_gates` (ids, separated by `;`) of a trial; `known` maps a gate's id to its verdict."""
    try:
        gates = support.gate_ids(record.trial)
        verdict = support.verdict(record.trial, known) if gates else ""  # without: it trains nothing
        return {"parity": verdict, "parity_gates": ";".join(gates)}
    except (AttributeError, KeyError, TypeError):  # a framework or model that this version does not have
        return {"parity": NOT_CHECKED, "parity_gates": ""}


# Records -> one row a trial: results.csv. Everything here can be derived again from the records at any time.
#
# Throughput of a trial is the samples of all ranks over the window of the slowest rank, never a mean of rates;
# its interval is that of the slowest rank's steps. Means over ranks, sums and maxima are as docs/record.md says.

TRIAL_KEYS = tuple(Trial().to_dict())
TEXTS = (
    *("study", "trial", "configuration", "status", "reason", "data_source"),
    *("parity", "parity_gates", "started_at", "launch", "error", "carrier"),
)
INTEGERS = (
    "planned_repeats",
    "max_batch",
    "steps",
    "parameters",
    "samples_seen",
    "rounds_failed",
    "allreduce_bytes",
    "communication_bytes",
    *COMMUNICATION_COLUMNS,
    "peak_memory_bytes",
    *MEMORY_COLUMNS,
)
COLUMNS = (
    *("study", "trial", "configuration", *TRIAL_KEYS, "status", "reason"),
    *("samples_per_second", "tokens_per_second", "interval_low", "interval_high"),
    *("steps", "step_seconds_mean", "step_seconds_median", "step_trend", *PHASE_COLUMNS),
    *("launch_seconds", "parameters", "samples_seen", "achieved_over_target", "rounds_failed", "allreduce_bytes"),
    *("communication_bytes", "carrier", "overlap"),
    *(*COMMUNICATION_COLUMNS, "peak_memory_bytes", *MEMORY_COLUMNS),
    *("gpu_utilization_percent", "energy_joules", "loss_first", "loss_last", "data_source", "parity", "parity_gates"),
    *("started_at", "launch", "error", "planned_repeats", "busy_elsewhere_cores", "max_batch"),
)


RECORD = "record.json"
AT_ONCE = 250  # trials that are read together
NOT_WHOLE = (TypeError, ValueError, AttributeError, KeyError)  # what a record of the right shape, but wrong, raises
WORDS = (*TEXTS, *TRIAL_KEYS)  # columns that may hold the words of others


class SkippedRecord(UserWarning):
    """A record that was left out, named, because it could not be read."""


class Collector(Protocol):
    """Keeps what it needs of each record that can be read, while that is in memory.

    Of many trials each process fills an `empty` one for its share of them; they are put together in the trials' order.
    """

    def add(self, record: Record) -> None: ...

    def empty(self) -> Self: ...

    def extend(self, later: Self) -> None: ...


@dataclass
class _Part:
    """What some of the trials hold, by the names of their folders."""

    collected: Collector | None = None
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    training: dict[str, str] = field(default_factory=dict)  # the configurations of those that are no gates
    firsts: dict[str, Record] = field(default_factory=dict)  # of each configuration, without what its ranks measured
    beside: list[details.Rows] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # why others could not be read


def read(results: Path) -> pd.DataFrame:
    """Every finished trial under `results` as COLUMNS, by id. Warns SkippedRecord of what cannot be read."""
    return read_whole(results)[0]


def read_whole(results: Path, processes: int = 1, collector: Collector | None = None) -> tuple[pd.DataFrame, Details]:
    """The same, and what their records hold beside it; of many trials by several processes. `collector` sees every
    record that can be read, also those that are skipped."""
    folders = _folders(results / "trials")
    shares = [folders[start : start + AT_ONCE] for start in range(0, len(folders), AT_ONCE)]
    processes = min(processes, len(shares))
    parts = execution.run_tasks(lambda share: _part(shares[share], collector), range(len(shares)), processes)
    whole = _Part()
    for share, ours in enumerate(shares):
        part = parts.pop(share, None) or _part(ours, collector)
        whole.rows |= part.rows
        whole.training |= part.training
        whole.firsts = part.firsts | whole.firsts
        whole.beside += part.beside
        if collector is not None and part.collected is not None:
            collector.extend(part.collected)
        for why in part.skipped:
            warnings.warn(why, SkippedRecord, stacklevel=2)
    verdicts = {row["trial"]: row["parity"] for name, row in whole.rows.items() if name not in whole.training}
    parity = {configuration: behind(record, verdicts) for configuration, record in whole.firsts.items()}
    for name, configuration in whole.training.items():
        whole.rows[name] |= parity[configuration]
    beside = details.gathered(whole.beside)
    try:
        return frame(whole.rows.values()), beside
    except NOT_WHOLE:  # a value of the wrong type somewhere: find whose, which is too slow to do every time
        fitting = (row for name, row in whole.rows.items() if _fits(row, results / "trials" / name / RECORD))
        return frame(fitting), beside


def _part(folders: Iterable[Path], collector: Collector | None) -> _Part:
    part, timed = _Part(None if collector is None else collector.empty()), dict[str, Timed]()
    for folder in folders:
        try:
            record, name = store.read_trial(folder), folder.name
            if part.collected is not None:
                part.collected.add(record)
            row, window = _row(record)
            if row["find"] != GATE:
                part.beside.append(details.details_of(record))
                part.training[name] = record.configuration
                if record.configuration not in part.firsts:
                    part.firsts[record.configuration] = replace(record, ranks=[])
            part.rows[name] = row
            if window is not None:
                timed[name] = window
        except MissingRecord:
            continue  # not finished
        except UnreadableRecord as error:
            part.skipped.append(f"skipped: {error}")
        except NOT_WHOLE as error:
            part.skipped.append(f"skipped: {folder / RECORD} is not whole: {error}")
    columns_of = measured.intervals(list(timed.values()), [part.rows[name]["reason"] for name in timed])
    for name, columns in zip(timed, columns_of, strict=True):
        part.rows[name] |= columns
    return part


def _folders(trials: Path) -> list[Path]:
    """Of every trial, by its id; without looking into them."""
    try:
        with os.scandir(trials) as entries:
            return [trials / name for name in sorted(entry.name for entry in entries if entry.is_dir())]
    except FileNotFoundError:
        return []


def frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows -> COLUMNS with types that do not depend on which trials there are: whole numbers stay whole."""
    kinds = {f.name: str(f.type).removesuffix(" | None") for f in fields(Trial)}
    kinds |= {"global_batch": "int"} | dict.fromkeys(INTEGERS, "int") | dict.fromkeys(TEXTS, "str")
    dtypes = {"int": "Int64", "bool": "boolean", "str": "string", "float": "float64"}
    return typed(rows, {name: dtypes[kinds.get(name, "float")] for name in COLUMNS})


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
    columns, timed = _row(record)
    return columns | (measured.intervals([timed], [columns["reason"]])[0] if timed else {})


def _row(record: Record) -> tuple[dict[str, Any], Timed | None]:
    """The row without what its interval says, and what that is worked out from."""
    result = dict.fromkeys(COLUMNS) | record.trial.to_dict()
    result |= {"study": record.study, "trial": record.id, "configuration": record.configuration}
    result |= {"status": record.status, "reason": record.reason, "error": record.error}
    result |= {"launch_seconds": record.launch_seconds, "started_at": record.started_at}
    result["launch"] = record.launch if LAUNCH_NAME.fullmatch(record.launch) else None
    result |= {"planned_repeats": record.planned_repeats}
    result["max_batch"] = record.found.get("max_batch")
    result["rounds_failed"] = measured.failed(record)
    if result["find"] == GATE:
        result["parity"] = own(record)
    if record.status not in store.STATUSES:
        raise ValueError(f"status {record.status!r} is none of {', '.join(store.STATUSES)}")
    for key in ("workers", "batch_per_worker"):
        if isinstance(value := result[key], int) and value < 1:
            raise ValueError(f"{key} is {value}")
    timed = None
    if record.status == "ok":
        if not record.ranks or any(not rank.step_seconds for rank in record.ranks):
            raise ValueError("status is ok, but not every rank has timed steps")
        columns, timed = measured.measured(record)
        result |= columns
    for key in WORDS:
        if isinstance(value := result[key], str) and not value.isprintable():
            result[key] = printable(value, but="\n\t" * (key == "error"))
    return result, timed
