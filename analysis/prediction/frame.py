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
    known = {id(check.prediction): check for check in forecast.checked if check.as_shown}
    rows = [_row(prediction, known.get(id(prediction))) for prediction in forecast.predictions]
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)


def _row(prediction: Prediction, checked: Checked | None) -> dict[str, Any]:
    target = prediction.target
    keys = {key: target.row[key] for key in ("model", "framework", "batch_per_worker")}
    columns = keys | {
        "series": target.label, "allreduce": prediction.allreduce, "algorithm": prediction.algorithm,
        "workers": prediction.workers,
        "hosts": prediction.network.hosts(prediction.workers), "network": prediction.network.source,
        "global_batch": prediction.workers * int(keys["batch_per_worker"]),
        "samples_per_second": prediction.samples_per_second.mean,
        "interval_low": prediction.samples_per_second.low, "interval_high": prediction.samples_per_second.high,
        "efficiency": prediction.efficiency.mean,
        "efficiency_low": prediction.efficiency.low, "efficiency_high": prediction.efficiency.high,
        "step_seconds": prediction.step_seconds, "exposed_seconds": prediction.exposed_seconds.mean,
        "exposed_low": prediction.exposed_seconds.low, "exposed_high": prediction.exposed_seconds.high,
        "waiting_seconds": prediction.waiting_seconds, "communication_seconds": prediction.communication_seconds,
        "calls": prediction.calls, "baseline": target.alone.configuration, "repeats": target.alone.repeats,
        "gradients_noted": target.alone.noted,
    }  # fmt: skip
    if checked:
        columns |= {"measured_samples_per_second": checked.samples_per_second, "error": checked.error}
        columns |= {"measured_configuration": checked.configuration, "noise": checked.noise}
    return columns
