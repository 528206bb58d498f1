"""Records -> one row a trial: results.csv. Everything here can be derived again from the records at any time.

Throughput of a trial is the samples of all ranks over the window of the slowest rank, never a mean of rates;
its interval is that of the slowest rank's steps. Means over ranks, sums and maxima are as docs/record.md says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from scaling_study import records
from scaling_study.intervals import throughput, within_run
from scaling_study.records import RankReport, Record, UnreadableRecord
from scaling_study.trial import Trial

PHASES = ("data", "forward", "backward", "communication", "optimizer", "unattributed")
TRIAL_KEYS = tuple(Trial().to_dict())
TEXTS = ("study", "trial", "configuration", "status", "reason", "data_source", "parity", "started_at", "error")
INTEGERS = (
    "planned_repeats",
    "steps",
    "parameters",
    "samples_seen",
    "allreduce_bytes",
    "communication_bytes",
    "peak_memory_bytes",
)
COLUMNS = (
    *("study", "trial", "configuration", *TRIAL_KEYS, "status", "reason"),
    *("samples_per_second", "tokens_per_second", "interval_low", "interval_high"),
    *("steps", "step_seconds_mean", "step_seconds_median", *(f"{phase}_seconds" for phase in PHASES)),
    *("launch_seconds", "parameters", "samples_seen", "allreduce_bytes", "communication_bytes", "peak_memory_bytes"),
    *("gpu_utilization_percent", "energy_joules", "loss_first", "loss_last", "data_source", "parity"),
    *("started_at", "error", "planned_repeats", "busy_elsewhere_cores"),
)


NOT_WHOLE = (TypeError, ValueError, AttributeError, KeyError)  # what a record of the right shape, but wrong, raises


class SkippedRecord(UserWarning):
    """A record that was left out, named, because it could not be read."""


def read(results: Path) -> pd.DataFrame:
    """Every finished trial under `results` as COLUMNS, by id. Warns SkippedRecord of what cannot be read."""
    rows = {}
    for path in sorted((results / "trials").glob("*/record.json")):
        try:
            rows[path] = row(records.read_record(path))
        except UnreadableRecord as error:
            warnings.warn(f"skipped: {error}", SkippedRecord, stacklevel=2)
        except NOT_WHOLE as error:
            warnings.warn(f"skipped: {path} is not whole: {error}", SkippedRecord, stacklevel=2)
    try:
        return frame(rows.values())
    except NOT_WHOLE:  # a value of the wrong type somewhere: find whose, which is too slow to do every time
        return frame(row for path, row in rows.items() if _fits(row, path))


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
    """
    asked = {key: record.trial.get(key) for key in TRIAL_KEYS}
    result = dict.fromkeys(COLUMNS) | asked
    result |= {"study": record.study, "trial": record.id, "configuration": record.configuration}
    result |= {"status": record.status, "reason": record.reason, "error": record.error}
    result |= {"launch_seconds": record.launch_seconds, "started_at": record.started_at}
    result |= {"planned_repeats": record.planned_repeats}
    if record.status not in records.STATUSES:
        raise ValueError(f"status {record.status!r} is none of {', '.join(records.STATUSES)}")
    if record.status != "ok":
        return result
    if not record.ranks or any(not rank.step_seconds for rank in record.ranks):
        raise ValueError("status is ok, but not every rank has timed steps")
    return result | measured(record)


def measured(record: Record) -> dict[str, Any]:
    """The columns of what was measured, over all ranks of a trial that is ok."""
    ranks = record.ranks
    slowest = max(ranks, key=lambda rank: sum(rank.step_seconds))
    window_seconds = sum(slowest.step_seconds)
    if window_seconds <= 0:
        raise ValueError("the timed window lasted no time")
    samples = sum(rank.samples_seen for rank in ranks)
    interval = throughput(within_run(slowest.step_seconds), samples / len(slowest.step_seconds))
    tokens = _over(sum, (rank.tokens_seen for rank in ranks))
    return {
        "reason": record.reason or interval.verdict,
        "busy_elsewhere_cores": records.busy_elsewhere_cores(ranks),
        "samples_per_second": samples / window_seconds,
        "tokens_per_second": None if tokens is None else tokens / window_seconds,
        "interval_low": interval.low,
        "interval_high": interval.high,
        "steps": len(slowest.step_seconds),
        "step_seconds_mean": window_seconds / len(slowest.step_seconds),
        "step_seconds_median": float(pd.Series(slowest.step_seconds).median()),
        **{
            f"{name}_seconds": _over(_mean, (getattr(rank.phases, f"{name}_seconds", None) for rank in ranks))
            for name in PHASES
        },
        "parameters": _over(max, (rank.parameters for rank in ranks)),
        "samples_seen": samples,
        "allreduce_bytes": _over(max, (rank.allreduce_bytes for rank in ranks)),
        "communication_bytes": _over(max, (_communication_bytes(rank) for rank in ranks)),
        "peak_memory_bytes": _over(max, (rank.peak_memory_bytes for rank in ranks)),
        "gpu_utilization_percent": _over(_mean, (rank.gpu_utilization_percent for rank in ranks)),
        "energy_joules": _over(sum, _energy_of_devices(ranks)),
        "loss_first": _over(_mean, (rank.loss_first for rank in ranks)),
        "loss_last": _over(_mean, (rank.loss_last for rank in ranks)),
        "data_source": "; ".join(dict.fromkeys(rank.data_source for rank in ranks)),
    }


def _communication_bytes(rank: RankReport) -> int | None:
    """Of one step of one worker, all kinds of collectives; None where the framework does not let us count."""
    counted = rank.communication_bytes or rank.allreduce_bytes is not None
    return sum(rank.communication_bytes.values()) if counted else None


def _energy_of_devices(ranks: Iterable[RankReport]) -> list[float | None]:
    """Joules of each distinct device: two ranks on one CPU read the same meter."""
    by_device: dict[tuple[str, str], float | None] = {}
    for rank in ranks:
        key = (rank.host, rank.device)
        by_device[key] = _over(max, (by_device.get(key), rank.energy_joules))
    return list(by_device.values())


def _over(fold: Callable[[list[Any]], Any], values: Iterable[Any]) -> Any:
    """`fold` over what is known of `values`; None where nothing is."""
    known = [value for value in values if value is not None]
    return fold(known) if known else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
