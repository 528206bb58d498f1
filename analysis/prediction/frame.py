"""Predictions as a frame: tables/prediction.csv, one row for each framework's way, precision, algorithm and count."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.prediction.against import Checked
from analysis.prediction.forecast import Forecast
from analysis.prediction.predict import Prediction

KEYS = ("model", "framework", "batch_per_worker", "series", "allreduce", "algorithm", "workers", "hosts", "network")
COLUMNS = (
    *(*KEYS, "global_batch", "samples_per_second", "interval_low", "interval_high"),
    *("efficiency", "efficiency_low", "efficiency_high", "step_seconds"),
    *("exposed_seconds", "exposed_low", "exposed_high", "waiting_seconds", "communication_seconds", "calls"),
    *("baseline", "repeats", "gradients_noted"),
    *("measured_samples_per_second", "measured_configuration", "error", "noise"),
)


def table(forecast: Forecast) -> pd.DataFrame:
    """COLUMNS. `baseline`: the one-worker configuration behind it; intervals as predict.py says; the last four where it
    was measured."""
    known = {id(one.prediction): one for one in forecast.checked if one.as_shown}
    rows = [_row(one, known.get(id(one))) for one in forecast.predictions]
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)


def _row(one: Prediction, checked: Checked | None) -> dict[str, Any]:
    target = one.target
    keys = {key: target.row[key] for key in ("model", "framework", "batch_per_worker")}
    columns = keys | {
        "series": target.label, "allreduce": one.allreduce, "algorithm": one.algorithm, "workers": one.workers,
        "hosts": one.network.hosts(one.workers), "network": one.network.source,
        "global_batch": one.workers * int(keys["batch_per_worker"]),
        "samples_per_second": one.samples_per_second.mean,
        "interval_low": one.samples_per_second.low, "interval_high": one.samples_per_second.high,
        "efficiency": one.efficiency.mean,
        "efficiency_low": one.efficiency.low, "efficiency_high": one.efficiency.high,
        "step_seconds": one.step_seconds, "exposed_seconds": one.exposed_seconds.mean,
        "exposed_low": one.exposed_seconds.low, "exposed_high": one.exposed_seconds.high,
        "waiting_seconds": one.waiting_seconds, "communication_seconds": one.communication_seconds,
        "calls": one.calls, "baseline": target.one.configuration, "repeats": target.one.repeats,
        "gradients_noted": target.one.noted,
    }  # fmt: skip
    if checked:
        columns |= {"measured_samples_per_second": checked.samples_per_second, "error": checked.error}
        columns |= {"measured_configuration": checked.configuration, "noise": checked.noise}
    return columns
