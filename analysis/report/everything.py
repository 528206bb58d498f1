"""Every configuration and every trial, as columns for a list of which only what is in sight is drawn."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames import outcomes
from analysis.frames.results import Results
from analysis.report.content import Listing

OF_CONFIGURATIONS = {
    "model": "model", "series": "configuration", "batch": "batch", "workers": "workers", "word": "status", "n": "n",
    "samples_per_second": "samples/s", "interval_low": "low", "interval_high": "high", "speedup": "speed-up",
    "efficiency": "efficiency", "step_seconds_mean": "step (ms)", "peak_memory_bytes": "peak memory (MB)",
    "allreduce_bytes": "reduced (MB)", "achieved_over_target": "achieved / target",
    "carrier": "carried by", "overlap": "overlap", "parameters": "parameters",
    "parity": "parity", "reason": "reason", "configuration": "id",
}  # fmt: skip
OF_TRIALS = {
    "model": "model", "series": "configuration", "batch": "batch", "repeat": "repeat", "word": "status",
    "samples_per_second": "samples/s", "interval_low": "low, within", "interval_high": "high, within",
    "steps": "steps", "step_seconds_median": "median step (ms)", "launch_seconds": "launch (s)",
    "loss_last": "last loss", "achieved_over_target": "achieved / target", "rounds_failed": "failed rounds",
    "busy_elsewhere_cores": "busy elsewhere", "started_at": "started", "reason": "reason",
    "trial": "id",
}  # fmt: skip
THOUSANDTHS = ("step_seconds_mean", "step_seconds_median")
MEGABYTES = ("peak_memory_bytes", "allreduce_bytes")
DIGITS = 5  # that are shown, and kept on the page; the CSV beside it has all


def configurations(results: Results) -> Listing:
    rows = results.configurations.sort_values(["model", "batch", "series_order"], kind="stable")
    return _listing("configurations", "Configurations", rows, OF_CONFIGURATIONS, "configurations.csv")


def trials(results: Results) -> Listing:
    """Of the study as it is now; gates and probes are in results.csv."""
    about = results.configurations[["configuration", "series", "batch"]]
    rows = results.runs.merge(about, on="configuration", how="inner")
    return _listing("trials", "Trials", rows, OF_TRIALS, "results.csv")


def _listing(slug: str, title: str, rows: pd.DataFrame, names: dict[str, str], file: str) -> Listing:
    rows = rows.assign(word=outcomes.words(rows))
    kept = [name for name in names if name in ("model", "word", "samples_per_second") or rows[name].notna().any()]
    columns = tuple(tuple(_values(rows[name], name)) for name in kept)
    return Listing(slug, title, tuple(names[name] for name in kept), columns, file)


def _values(column: pd.Series[Any], name: str) -> list[Any]:
    """Plain values, None where unknown; numbers to DIGITS significant ones."""
    if pd.api.types.is_float_dtype(column) or name in MEGABYTES:
        factor = 1000.0 if name in THOUSANDTHS else 1e-6 if name in MEGABYTES else 1.0
        return [None if pd.isna(value) else float(f"{value * factor:.{DIGITS}g}") for value in column]
    if pd.api.types.is_integer_dtype(column):
        return [None if pd.isna(value) else int(value) for value in column]
    return ["" if pd.isna(value) else str(value) for value in column]
