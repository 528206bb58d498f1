"""One row a configuration that was trained to a result: means over its seeds, with those that never got there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.baseline import values_of
from analysis.frames.comparability import own_algorithm
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.trained import METRICS, evaluation_steps, rounding
from analysis.scaling import cost
from analysis.statistics.censored import censored_mean
from analysis.to_target import ties
from scaling_study.stats.intervals import between_repeats

UNITS = {"seconds": "train_seconds", "samples": "samples", "steps": "steps"}  # -> of a training that was stopped
SAME_TASK = (  # inputs augment each its way
    *("model", "train_target", "train_validation", "data", "input", "image_size", "image_width"),
)  # fmt: skip
COLUMNS = (
    *("configuration", "series", "model", "framework", "workers", "global_batch", "learning_rate", "target"),
    *("seeds", "reached", "diverged"),
    *(f"{unit}_to_target{bound}" for unit in UNITS for bound in ("", "_low", "_high")),
    *(f"{what}_to_target{bound}" for what in ("worker_hours", "money") for bound in ("", "_low", "_high")),
    *("price_per_worker_hour", "soonest", "cheapest", "samples_per_second", "evaluate_share"),
    *(f"test_{name}{bound}" for name in METRICS for bound in ("", "_low", "_high")),
    *("resumed", "lost_steps", "train_seconds", "train_seconds_low", "train_seconds_high", "steps", "best_step"),
    *("cores_busy", "gpu_utilization_percent", "peak_memory_bytes"),
)


def table(results: Results) -> pd.DataFrame:
    """COLUMNS. Seconds are of training alone. A mean to target is geometric, over all seeds: where some were stopped
    before, they count as larger (statistics/censored.py). Test metrics are arithmetic means of all seeds,
    seconds of whole trainings geometric ones.

    `soonest`, `cheapest`: a verdict of ties.py among those of its model and target. The cheapest has the least money
    where every one of these has a price, else the fewest worker-hours.
    """
    trained = results.details.trained
    shown = {row["configuration"]: row for row in results.rows}
    prices = cost.prices(results)
    rows: list[dict[str, Any]] = []
    every = evaluation_steps(results.details.evaluations)
    for name, ours in trained.groupby("configuration", sort=False):
        if row := shown.get(str(name)):
            price, _ = prices.get(str(name), (None, ""))
            known = {key: row.get(key) for key in COLUMNS if key in row}
            rows.append({**known, **_of(ours, row, price, rounding(ours, every))})
    _judge(rows, shown, trained)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _judge(rows: list[dict[str, Any]], shown: Mapping[str, ConfigurationRow], trained: pd.DataFrame) -> None:
    """Enter who is the soonest and the cheapest, and what is tied with it."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["target"]:
            of = shown[row["configuration"]]
            task = (*map(str, values_of(of, SAME_TASK)), own_algorithm(of))
            groups.setdefault(task, []).append(row)
    for verdict, priced in (("soonest", False), ("cheapest", True)):
        times = [
            {row["configuration"]: _times(trained, row, group if priced else []) for row in group}
            for group in groups.values()
        ]
        verdicts = ties.verdicts(times)
        for row in rows:
            row[verdict] = verdicts.get(row["configuration"], "")


def _times(trained: pd.DataFrame, row: dict[str, Any], priced_among: list[dict[str, Any]]) -> ties.Times:
    """Seconds; or worker-hours, times their price where all of `priced_among` have one."""
    ours = trained[trained.configuration == row["configuration"]]
    prices = [other["price_per_worker_hour"] for other in priced_among]
    price = 1.0 if any(one is None for one in prices) else row["price_per_worker_hour"] or 1.0
    factor = int(row["workers"]) / 3600 * price if priced_among else 1.0
    reached = ours.target_seconds.notna()
    return ties.Times(
        (factor * ours.target_seconds[reached]).tolist(), (factor * ours.train_seconds[~reached]).tolist()
    )


def _of(ours: pd.DataFrame, row: Any, price: float | None, least_spread: float) -> dict[str, Any]:
    reached = ours.target_steps.notna()
    result: dict[str, Any] = {
        "learning_rate": row["learning_rate"], "target": str(ours.target.iloc[0]), "seeds": len(ours),
        "reached": int(reached.sum()), "diverged": int((ours.ended_by == "diverged").sum()),
        "evaluate_share": float((ours.evaluate_seconds / (ours.train_seconds + ours.evaluate_seconds)).mean()),
        "samples_per_second": float(ours.samples.sum() / ours.train_seconds.sum()),
        "resumed": int(ours.resumed.sum()), "lost_steps": int(ours.lost_steps.sum()), "price_per_worker_hour": price,
    }  # fmt: skip
    for unit, stopped in UNITS.items():
        took, bounds = ours.loc[reached, f"target_{unit}"].to_list(), ours.loc[~reached, stopped].to_list()
        mean = censored_mean(took, bounds, least_spread=least_spread)
        result |= {f"{unit}_to_target": mean.mean, f"{unit}_to_target_low": mean.low}
        result[f"{unit}_to_target_high"] = mean.high
    for bound in ("", "_low", "_high"):
        seconds = result[f"seconds_to_target{bound}"]
        hours = None if seconds is None else seconds * int(row["workers"]) / 3600
        result[f"worker_hours_to_target{bound}"] = hours
        result[f"money_to_target{bound}"] = None if hours is None or price is None else hours * price
    for name in (f"test_{metric}" for metric in METRICS):
        values = ours[name].dropna().to_numpy(float)
        if len(values) and np.isfinite(values).all():
            interval = between_repeats(values.tolist())
            result |= {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
    whole = censored_mean(ours.train_seconds.to_list(), ())
    result |= {"train_seconds": whole.mean, "train_seconds_low": whole.low, "train_seconds_high": whole.high}
    for name in ("steps", "best_step", "cores_busy", "gpu_utilization_percent", "peak_memory_bytes"):
        result[name] = float(ours[name].mean()) if ours[name].notna().any() else None
    return result
