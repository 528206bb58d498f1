"""The table of predicted seconds to a target, and with how many workers they, or the worker-hours, are fewest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.frames.results import Results
from analysis.prediction.to_target import Expected
from analysis.statistics.log_estimates import LogEstimate
from analysis.tables import efficiency, notes
from analysis.tables.layout import Listing
from analysis.text.number_formats import number

HEADER = (
    *("configuration", "target", "algorithm", "workers", "global batch", "samples", "seconds", "worker-hours"),
    *("measured seconds", "error"),
)
COLUMNS = (
    *("recipe", "framework", "allreduce", "algorithm", "workers", "global_batch", "inside"),
    *(
        f"{name}{bound}"
        for name in ("samples", "seconds", "measured_seconds", "error")
        for bound in ("", "_low", "_high")
    ),
    "worker_hours",
)
METHOD = (
    "Seconds: samples to the target at the global batch, of the curve fitted to this study's trainings, over the "
    "predicted throughput [95 %, of both]. Weak scaling: the batch per worker is constant. What was trained with a "
    "global batch has no part in a prediction that is held against it. Error: predicted / measured - 1."
)
OUTSIDE = "*: beyond the global batches that were trained, where the curve is believed and was not seen."


def listing(expected: Sequence[Expected], results: Results) -> Listing:
    rows = tuple(_cells(one, results) for one in expected)
    outside = [OUTSIDE] if not all(one.inside for one in expected) else []
    lines = (METHOD, *outside, *_best(expected, results), f"{notes.source(results)}.")
    return Listing(f"Predicted seconds to the target ({results.heading})", HEADER, rows, lines)


def table(expected: Sequence[Expected], results: Results) -> pd.DataFrame:
    """COLUMNS."""
    rows = []
    for one in expected:
        made: dict[str, Any] = {
            "recipe": efficiency.name(one.recipe, results), "framework": one.prediction.target.row["framework"],
            "allreduce": one.prediction.allreduce, "algorithm": one.prediction.algorithm,
            "workers": one.prediction.workers, "global_batch": one.batch, "inside": one.inside,
            "worker_hours": one.hours,
        }  # fmt: skip
        made |= _numbers("samples", one.samples) | _numbers("seconds", one.seconds)
        made |= _numbers("measured_seconds", one.measured) | _numbers("error", one.error, less=1.0)
        rows.append(made)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _numbers(name: str, estimate: LogEstimate | None, less: float = 0.0) -> dict[str, float | None]:
    values = (None, None, None) if estimate is None else (estimate.value, *estimate.bounds())
    found = (None if value is None else value - less for value in values)
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))


def _cells(one: Expected, results: Results) -> tuple[str, ...]:
    prediction = one.prediction
    return (
        prediction.target.label, efficiency.name(one.recipe, results), prediction.algorithm.replace("_", " and "),
        f"{prediction.workers:,}", f"{one.batch:,}{'' if one.inside else ' *'}", _text(one.samples), _text(one.seconds),
        number(one.hours), "" if one.measured is None else _text(one.measured),
        "" if one.error is None else _error(one.error),
    )  # fmt: skip


def _text(estimate: LogEstimate) -> str:
    return f"{_number(estimate.value)}{_bounds(estimate)}"


def _bounds(estimate: LogEstimate) -> str:
    low, high = estimate.bounds()
    if low is None and high is None:
        return ""
    return f" [{'0' if low is None else _number(low)}, {'∞' if high is None else _number(high)}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else number(value)


def _error(error: LogEstimate) -> str:
    low, high = error.bounds()
    bounds = "" if low is None or high is None else f" [{100 * (low - 1):+.0f} %, {100 * (high - 1):+.0f} %]"
    return f"{100 * (error.value - 1):+.0f} %{bounds}"


def _best(expected: Sequence[Expected], results: Results) -> Iterator[str]:
    """Of each configuration, recipe and algorithm, among the worker counts that were asked for."""
    groups: dict[tuple[str, str, str, str], list[Expected]] = {}
    for one in expected:
        way = one.prediction.target.label, one.prediction.allreduce, one.prediction.algorithm
        groups.setdefault((efficiency.name(one.recipe, results), *way), []).append(one)
    for (recipe, label, allreduce, algorithm), ours in groups.items():
        if len(ours) > 1:
            soonest = min(ours, key=lambda one: one.seconds.value)
            cheapest = min(ours, key=lambda one: one.hours)
            seconds = f"{soonest.prediction.workers:,} ({_text(soonest.seconds)} s)"
            hours = f"{cheapest.prediction.workers:,} ({number(cheapest.hours)})"
            yield (
                f"{recipe}, {label}, {allreduce}, {algorithm.replace('_', ' and ')}: of the worker counts asked for, "
                f"the fewest seconds are predicted for {seconds}, the fewest worker-hours for {hours}."
            )
