"""One row a configuration that ran epochs: its last one, and what it is against the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from analysis.epochs import faults
from analysis.epochs.faults import Row
from analysis.frames import baseline
from analysis.frames.results import Results
from analysis.frames.row_types import ComparedEpoch
from scaling_study.models import MODELS
from scaling_study.stats.intervals import ratio

SECONDS = ("data_seconds", "training_seconds", "running_seconds")
COLUMNS = (
    *("configuration", "series", "series_order", "model", "framework", "workers", "batch_per_worker", "global_batch"),
    *("steps", "samples", *SECONDS, "steady_seconds", "unsteady", "epoch_repeats", "samples_per_epoch_second"),
    *("used_learning_rate", "epoch_baseline", "epoch_ratio", "epoch_ratio_low", "epoch_ratio_high"),
    *("equal_work_ratio", "same_batch_baseline", "same_batch_ratio", "why_no_ratio", "flags"),
    *("parity", "not_comparable"),
)
NO_RATIO = dict.fromkeys(("epoch_baseline", "epoch_ratio", "equal_work_ratio", "same_batch_ratio"))


def table(results: Results) -> pd.DataFrame:
    """COLUMNS, for every configuration that ran epochs: means over its repeats of the last epoch.

    Samples are summed over the ranks, seconds are of the rank whose epoch lasted longest. `unsteady` is
    running_seconds / steady_seconds - 1. Ratios are None with the reason in `why_no_ratio`; `same_batch_ratio` is the
    epoch ratio to a baseline with the same global batch, where the other was chosen by another. `flags`: `F9;F13`.
    """
    mine = measured(results)
    configurations = results.rows
    rows = [
        cast("ComparedEpoch", {**row, **mine[row["configuration"]]})
        for row in configurations
        if row["configuration"] in mine
    ]
    compared = [cast("ComparedEpoch", {**row, **NO_RATIO, **_compared(row, rows, results)}) for row in rows]
    for row in compared:
        row["flags"] = ";".join(mark for mark, _ in faults.of(row, compared))
    frame = pd.DataFrame(compared, columns=list(COLUMNS), dtype=object)
    return frame.sort_values(["model", "series_order", "global_batch"], kind="stable", ignore_index=True)


def measured(results: Results) -> dict[str, dict[str, Any]]:
    """Configuration -> what its last epoch took, and `values`: the running seconds of each repeat."""
    epochs = results.details.epochs
    steady = results.trials.set_index(["configuration", "repeat"]).step_seconds_mean
    last_epochs: dict[str, dict[str, Any]] = {}
    for name, ours in epochs[~epochs.warmup].groupby("configuration", sort=False):
        last = ours.groupby(["repeat", "rank"], as_index=False).last()
        slowest = last.sort_values("running_seconds").groupby("repeat").last()
        mean_step = steady.reindex([(name, repeat) for repeat in slowest.index]).to_numpy(dtype=float)
        means = {key: float(slowest[key].mean()) for key in SECONDS}
        expected = float(np.mean(slowest.steps.to_numpy() * mean_step))
        samples = int(last.groupby("repeat").samples.sum().max())
        last_epochs[str(name)] = {
            "steps": int(slowest.steps.max()), "samples": samples, **means,
            "steady_seconds": expected, "unsteady": means["running_seconds"] / expected - 1,
            "epoch_repeats": len(slowest), "samples_per_epoch_second": samples / means["running_seconds"],
            "used_learning_rate": None if last.learning_rate.isna().all() else float(last.learning_rate.max()),
            "values": slowest.running_seconds.to_list(),
        }  # fmt: skip
    return last_epochs


def _compared(row: Row, rows: Sequence[Row], results: Results) -> dict[str, Any]:
    """The ratios of one row to its baseline among `rows`, or why there are none."""
    reference = _baseline(row, rows, results)
    if isinstance(reference, str):
        return {"why_no_ratio": reference}
    if held := next((side for side in (row, reference) if side["not_comparable"] or side["oversubscribed"]), None):
        return {"why_no_ratio": held["not_comparable"] or "oversubscribed"}
    columns: dict[str, Any] = {"epoch_baseline": reference["configuration"], "why_no_ratio": ""}
    if reference is row:
        return columns | {"epoch_ratio": 1.0, "equal_work_ratio": 1.0}
    gain = ratio(reference["values"], row["values"], first=(int(reference["planned"]), int(row["planned"])))
    columns |= {"epoch_ratio": gain.mean, "epoch_ratio_low": gain.low, "epoch_ratio_high": gain.high}
    columns |= {"equal_work_ratio": row["samples_per_epoch_second"] / reference["samples_per_epoch_second"]}
    if row["global_batch"] != reference["global_batch"]:
        other = _baseline(row, rows, results, batch="global_batch")
        if not isinstance(other, str) and not other["not_comparable"]:
            columns |= {"same_batch_baseline": other["configuration"]}
            columns |= {"same_batch_ratio": ratio(other["values"], row["values"]).mean}
    return columns


def _baseline(row: Row, rows: Sequence[Row], results: Results, batch: str | None = None) -> Row | str:
    """Its own model's, or that of the model it is a variant of."""
    reference = baseline.find(row, rows, results.study, batch=batch)
    like = MODELS[str(row["model"])].like if str(row["model"]) in MODELS else ""
    if isinstance(reference, str) and like:
        original = baseline.find(row, rows, results.study, model=like, batch=batch)
        return reference if isinstance(original, str) else original
    return reference
