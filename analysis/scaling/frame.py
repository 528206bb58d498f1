"""What next, as frames: the columns behind each table of tables/scaling.py."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames.baseline import value_of
from analysis.frames.cache import once
from analysis.frames.results import Results
from analysis.scaling import knee, pareto
from analysis.scaling.extrapolate import Extrapolated, extrapolations
from analysis.scaling.families import Family
from analysis.scaling.fit import Comparison, comparisons
from analysis.scaling.knee import Knee

FAMILY = ("model", "family", "framework", "allreduce", "batch_per_worker", "global_batch")
MOST_FAMILIES = 60  # that are extrapolated: a bootstrap each


def frames(results: Results) -> dict[str, pd.DataFrame]:
    """All of them, by the names of listing.named()."""
    makers = {"scaling-laws": laws, "extrapolation": predictions, "returns": returns, "cost": cost}
    return {name: table(results) for name, table in makers.items()}


@once
def extrapolated(results: Results) -> list[tuple[Comparison, list[Extrapolated], Knee]]:
    """Every family with a law, what it says of counts not run, and its knee; of the first MOST_FAMILIES."""
    extrapolations_of = []
    for beyond in extrapolations(results)[:MOST_FAMILIES]:
        extrapolations_of.append((beyond.compared, beyond.at(beyond.counts), knee.knee(beyond)))
    return extrapolations_of


def laws(results: Results) -> pd.DataFrame:
    """A row for each law of each family, the best first; of a family without any, one with the reason."""
    columns = [
        "law",
        "best",
        "not_told_apart",
        "held_out_error",
        "held_out_largest",
        "misfit",
        "noise",
        "formula",
        "why",
    ]
    rows: list[dict[str, Any]] = []
    for comparison in comparisons(results):
        if not isinstance(comparison, Comparison):
            rows.append(_of(comparison.family) | {"why": comparison.why})
            continue
        for place, fit in enumerate(comparison.fits):
            rows.append(_of(comparison.family) | {
                "law": fit.law.name, "best": place == 0, "not_told_apart": place < comparison.alike,
                "held_out_error": fit.error, "held_out_largest": float(fit.held_out[-1]), "misfit": fit.misfit,
                "noise": comparison.noise.half_width, "formula": fit.formula, "why": comparison.why,
            })  # fmt: skip
    return pd.DataFrame(rows, columns=[*FAMILY, *columns], dtype=object)


def predictions(results: Results) -> pd.DataFrame:
    """A row for each count not run of each family with a law."""
    columns = ["workers", "law", "inside", "samples_per_second", "interval_low", "interval_high", "efficiency",
               "efficiency_low", "efficiency_high"]  # fmt: skip
    rows = [
        _of(extrapolation.family) | {
            "workers": at.workers, "law": extrapolation.best.law.name, "inside": at.inside,
            "samples_per_second": at.samples_per_second, "interval_low": at.low, "interval_high": at.high,
            "efficiency": at.efficiency, "efficiency_low": at.efficiency_low, "efficiency_high": at.efficiency_high,
        }
        for extrapolation, points, _ in extrapolated(results) for at in points
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=[*FAMILY, *columns], dtype=object)


def returns(results: Results) -> pd.DataFrame:
    """A row for each step between measured counts, with the family's knee where it has a law."""
    columns = ["before", "after", "returned", "returned_low", "returned_high", "knee", "knee_low", "knee_high"]
    knees = {id(extrapolation.family): turn for extrapolation, _, turn in extrapolated(results)}
    rows = []
    for comparison in comparisons(results):
        turn = knees.get(id(comparison.family))
        bounds = {} if turn is None else {"knee": turn.workers, "knee_low": turn.low, "knee_high": turn.high}
        rows += [
            _of(comparison.family) | bounds | {
                "before": step.before, "after": step.after, "returned": step.share, "returned_low": step.low,
                "returned_high": step.high,
            }
            for step in knee.returns(comparison.family)
        ]  # fmt: skip
    return pd.DataFrame(rows, columns=[*FAMILY, *columns], dtype=object)


def cost(results: Results, price: float | None = None) -> pd.DataFrame:
    """A row for each configuration: time and worker-hours for a million samples, money where there is a price."""
    columns = [
        *("configuration", "model", "series", "batch", "workers", "seconds_per_million"),
        *("worker_hours_per_million", "worker_hours_low", "worker_hours_high", "price_per_worker_hour"),
        *("money_per_million", "pareto", "beaten_by", "why"),
    ]
    rows = [
        {name: value_of(point.row, name) for name in columns[:5]} | dict(zip(columns[5:], (
            point.of.seconds, point.of.worker_hours, point.of.low, point.of.high, point.of.price, point.of.money,
            point.place, point.by, point.of.why,
        ), strict=True))
        for model in results.models for point in pareto.points(results, model, price)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns, dtype=object)


def _of(family: Family) -> dict[str, Any]:
    about = family.about
    keys = {key: value_of(about, key) for key in ("framework", "allreduce")}
    held = "global_batch" if family.strong else "batch_per_worker"
    return {"model": family.model, "family": family.label} | keys | {held: int(value_of(about, held))}
