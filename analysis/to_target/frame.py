"""One row a configuration that was trained to a result: means over its seeds, with those that never got there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.results import Results
from analysis.frames.trained import METRICS
from analysis.statistics.censored import censored_mean
from scaling_study.stats.intervals import between_repeats

UNITS = {"seconds": "train_seconds", "samples": "samples", "steps": "steps"}  # -> of a training that was stopped
COLUMNS = (
    *("configuration", "series", "model", "framework", "workers", "global_batch", "learning_rate", "target"),
    *("seeds", "reached", "diverged"),
    *(f"{unit}_to_target{bound}" for unit in UNITS for bound in ("", "_low", "_high")),
    *("worker_hours_to_target", "samples_per_second", "evaluate_share"),
    *(f"test_{name}{bound}" for name in METRICS for bound in ("", "_low", "_high")),
    *("resumed", "lost_steps"),
)


def table(results: Results) -> pd.DataFrame:
    """COLUMNS. Seconds are of training alone. A mean to target is geometric, over all seeds: where some were stopped
    before, they count as larger (statistics/censored.py). Test metrics are arithmetic means of all seeds."""
    trained = results.details.trained
    shown = {row["configuration"]: row for row in results.rows}
    rows = []
    for name, ours in trained.groupby("configuration", sort=False):
        if row := shown.get(str(name)):
            rows.append({**{key: row.get(key) for key in COLUMNS if key in row}, **_of(ours, row)})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _of(ours: pd.DataFrame, row: Any) -> dict[str, Any]:
    reached = ours.target_steps.notna()
    result: dict[str, Any] = {
        "learning_rate": row["learning_rate"], "target": str(ours.target.iloc[0]), "seeds": len(ours),
        "reached": int(reached.sum()), "diverged": int((ours.ended_by == "diverged").sum()),
        "evaluate_share": float((ours.evaluate_seconds / (ours.train_seconds + ours.evaluate_seconds)).mean()),
        "samples_per_second": float(ours.samples.sum() / ours.train_seconds.sum()),
        "resumed": int(ours.resumed.sum()), "lost_steps": int(ours.lost_steps.sum()),
    }  # fmt: skip
    for unit, stopped in UNITS.items():
        mean = censored_mean(ours.loc[reached, f"target_{unit}"].to_list(), ours.loc[~reached, stopped].to_list())
        result |= {f"{unit}_to_target": mean.mean, f"{unit}_to_target_low": mean.low}
        result[f"{unit}_to_target_high"] = mean.high
    if (seconds := result["seconds_to_target"]) is not None:
        result["worker_hours_to_target"] = seconds * int(row["workers"]) / 3600
    for name in METRICS:
        values = ours[f"test_{name}"].dropna().to_numpy(float)
        if len(values) and np.isfinite(values).all():
            interval = between_repeats(values.tolist())
            result |= {f"test_{name}": interval.mean, f"test_{name}_low": interval.low}
            result[f"test_{name}_high"] = interval.high
    return result
