"""The table of trainings to a result: who reached the target, how soon, and what the test set says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.frames import comparability
from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.trained import SHOWN
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.text.number_formats import number
from analysis.to_target import frame

table = frame.table
HEADER = ("configuration", "target", "reached", "seconds", "samples", "steps", "soonest", "worker-hours")


def listing(results: Results) -> Listing | None:
    """A row for each configuration that was trained; None where none was."""
    rows = table(results)
    if rows.empty:
        return None
    priced = bool(rows.money_to_target.notna().any())
    metrics = [name for name in SHOWN if rows[f"test_{name}"].notna().any()]
    several = rows.model.nunique() > 1
    signs = {row["configuration"]: comparability.sign(row) for row in results.rows}
    cells = [_cells(row, metrics, several, priced, signs[row["configuration"]]) for row in rows.to_dict("records")]
    costs = ("money", "cheapest") if priced else ("cheapest",)
    return Listing(
        f"Training to a result ({results.heading})", (*HEADER, *costs, *(f"test {name}" for name in metrics)),
        tuple(cells), tuple(_lines(results, rows)),
    )  # fmt: skip


def _cells(row: Mapping[Any, Any], metrics: list[str], several: bool, priced: bool, sign: str) -> tuple[str, ...]:
    model = f"{row['model']}, " if several else ""
    name = f"{model}{row['series']}, batch {row['global_batch']} {sign}".rstrip()
    money = (interval(row, "money_to_target"),) if priced else ()
    return (
        *(name, row["target"] or "none", f"{row['reached']} of {row['seeds']}"),
        *(_to_target(row, unit) for unit in frame.UNITS),
        *(row["soonest"], interval(row, "worker_hours_to_target"), *money, row["cheapest"]),
        *(interval(row, f"test_{metric}", 3) for metric in metrics),
    )


def _to_target(row: Mapping[Any, Any], unit: str) -> str:
    if not row["target"]:
        return ""
    if not known(row[f"{unit}_to_target"]):
        return "not reached" if not row["reached"] else "too few"
    return interval(row, f"{unit}_to_target")


def interval(row: Mapping[Any, Any], key: str, places: int | None = None) -> str:
    """`412 [398, 427]`; empty where it is not known."""

    def text(value: Any) -> str:
        if not known(value):
            return "?"
        return f"{value:.{places}f}" if places is not None else f"{value:,.0f}" if value >= 100 else number(value)

    if not known(row[key]):
        return ""
    bounds = row[f"{key}_low"], row[f"{key}_high"]
    return text(row[key]) + (f" [{text(bounds[0])}, {text(bounds[1])}]" if any(map(known, bounds)) else "")


def _lines(results: Results, rows: pd.DataFrame) -> list[str]:
    lines = [
        "To the first evaluation on validation data at which the target was reached: geometric means over the seeds "
        "[95 % interval, log-normal]. A training that was stopped before counts as one that takes longer. Seconds are "
        "of training steps alone; evaluation and checkpoints are apart. Nothing is known between two evaluations.",
        "Soonest and cheapest: tied is what is not shown to be slower, or dearer, than another (95 %, corrected for "
        "all pairs of the study). One with a training that was stopped before is never the best, and not resolved "
        f"unless it is slower all the same. {_cost(rows)}",
        "Test: the model at the end of each training, on the published test set, once; mean over the seeds [95 %].",
        f"Learning rates: {_rates(results)}.",
    ]
    if inputs := _unlike_inputs(results):
        lines.append(
            f"Inputs ({', '.join(inputs)}) augment images each in its own way: losses, metrics and steps are not "
            "compared from one input to another, and who is soonest and cheapest is asked for each by itself."
        )
    if rows.diverged.any():
        lines.append(f"{rows.diverged.sum():,} training(s) diverged: their loss became no number.")
    if rows.resumed.any():
        lines.append(
            f"{rows.resumed.sum():,} resumption(s) from a checkpoint; {rows.lost_steps.sum():,} steps were made twice."
        )
    ours = results.configurations[results.configurations.configuration.isin(rows.configuration)]
    return [*comparability.sentences(ours), *notes.how_it_differs(ours), *lines, notes.source(results)]


def _unlike_inputs(results: Results) -> list[str]:
    """What made the batches of the trainings, where a model has several."""
    trained = results.configurations[results.configurations.configuration.isin(results.details.trained.configuration)]
    kinds = {model: set(rows.input.fillna("none given")) for model, rows in trained.groupby("model")}
    return sorted(set().union(*(names for names in kinds.values() if len(names) > 1)))


def _cost(rows: pd.DataFrame) -> str:
    prices = rows.price_per_worker_hour
    if prices.isna().all():
        return "No price is set (price_per_worker_hour in a machine file): the fewest worker-hours are the cheapest."
    some = "" if prices.notna().all() else ", but not of all: the fewest worker-hours are the cheapest"
    return f"Money: worker-hours x the price of a machine file{some}."


def _rates(results: Results) -> str:
    trained = results.configurations[results.configurations.configuration.isin(results.details.trained.configuration)]
    rules = {
        f"{row.learning_rate:g} x {rule} of (global batch / {row.train_reference_batch})"
        if known(rule := row.train_scale_learning_rate) and rule != "none"
        else f"{row.learning_rate:g}"
        if known(row.learning_rate)
        else "the workload's own"
        for row in trained.itertuples()
    }
    return "; ".join(sorted(rules)) + " (never multiplied by workers)"
