"""Statistical efficiency and goodput of each trained configuration, and what the noise scale predicts of them.

    efficiency(B) = samples to the target at the smallest global batch / at B     goodput = samples/s x efficiency
    by a noise scale Bnoise: (smallest + Bnoise) / (B + Bnoise)

Predicted is samples(B) = Smin (B + Bnoise): Smin from the samples, and Bnoise from the gradients, of the two smallest
global batches with a noise scale. Seconds are those samples over the configuration's own throughput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from scipy import stats

from analysis.frames.results import Results
from analysis.statistics import log_estimates
from analysis.statistics.log_estimates import LogEstimate
from analysis.statistics.noise_scale import predicted_efficiency
from analysis.to_target.critical_batch import Curve
from analysis.to_target.recipes import Recipe, Trained, recipes

WITH_BOUNDS = (
    *("samples_per_second", "efficiency", "noise_efficiency", "goodput", "noise_scale", "critical_batch"),
    *("measured_steps", "predicted_steps", "error", "seconds", "predicted_seconds"),
)
COLUMNS = (
    *("configuration", "series", "model", "framework", "workers", "batch_per_worker", "global_batch", "target"),
    *("recipe", "seeds", "reached", "smallest_batch"),
    *(f"{name}{bound}" for name in WITH_BOUNDS for bound in ("", "_low", "_high")),
    *("smallest_steps", "noise_rows", "noise_unknown", "predicted_from", "worker_hours"),
)
NAMES = COLUMNS[:7]
PREDICTED_FROM = 2  # global batches


def table(results: Results) -> pd.DataFrame:
    """COLUMNS, a row for each configuration that was trained to a target; `recipe` counts recipes from 1. `error`:
    predicted / measured - 1."""
    rows = [
        _row(one, recipe, number)
        for number, recipe in enumerate(recipes(results), start=1)
        for one in recipe.trained
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(one: Trained, recipe: Recipe, number: int) -> dict[str, Any]:
    made: dict[str, Any] = {name: one.row[name] for name in NAMES}  # type: ignore[literal-required]
    made |= {"target": recipe.target, "recipe": number, "seeds": one.seeds, "reached": one.reached}
    made |= {"noise_unknown": one.unknown, "noise_rows": one.noise.rows if one.noise else 0}
    made |= _bounded("samples_per_second", one.speed)
    if isinstance(recipe.curve, Curve):
        curve = recipe.curve
        made |= {"critical_batch": curve.critical, "critical_batch_low": curve.low, "critical_batch_high": curve.high}
        made["smallest_steps"] = curve.steps
    if one.noise:
        made |= {"noise_scale": one.noise.scale, "noise_scale_low": one.noise.low, "noise_scale_high": one.noise.high}
    if (efficiency := recipe.efficiency(one.batch)) is None:
        return made
    samples = recipe.samples[one.batch]
    seconds = samples / one.speed
    made |= {"smallest_batch": recipe.smallest, "worker_hours": seconds.value * int(one.row["workers"]) / 3600}
    made |= _bounded("efficiency", efficiency) | _bounded("goodput", one.speed * efficiency)
    made |= _bounded("measured_steps", samples / log_estimates.exactly(one.batch)) | _bounded("seconds", seconds)
    made |= _noise_efficiency(one, recipe.smallest)
    sources = predicted_from(recipe)
    made["predicted_from"] = ";".join(map(str, sources))
    if (expected := predicted(recipe, sources, one.batch)) is not None and one.batch not in sources:
        made |= _bounded("predicted_steps", expected / log_estimates.exactly(one.batch))
        made |= _bounded("predicted_seconds", expected / one.speed)
        error = _bounded("error", expected / samples)
        made |= {name: None if value is None else value - 1 for name, value in error.items()}
    return made


def predicted_from(recipe: Recipe) -> tuple[int, ...]:
    """The smallest global batches that reached the target and whose noise scale is known."""
    there = [batch for batch in sorted(recipe.samples) if recipe.noise_at(batch)]
    return tuple(there[:PREDICTED_FROM]) if len(there) >= PREDICTED_FROM else ()


def predicted(recipe: Recipe, sources: Sequence[int], batch: int) -> LogEstimate | None:
    """Samples to the target at `batch`; None without sources."""
    if not sources:
        return None
    share, noise, smallest = 1 / len(sources), log_estimates.exactly(1.0), log_estimates.exactly(1.0)
    for source in sources:
        known = recipe.noise_at(source)
        assert known is not None and known.scale is not None
        noise *= log_estimates.between(known.scale, known.low, known.high, known.freedom) ** share
        smallest *= recipe.samples[source] ** share

    def growth(scale: float) -> float:
        """Logarithm of samples at `batch` over those at the sources."""
        if math.isinf(scale):
            return 0.0
        return math.log(batch + scale) - share * sum(math.log(source + scale) for source in sources)

    low, high = noise.bounds()
    at, ends = growth(noise.value), (growth(low or 0.0), growth(math.inf if high is None else high))
    quantile = float(stats.t.ppf(0.975, noise.freedom))
    below, above = at - min(at, *ends), max(at, *ends) - at
    return smallest * LogEstimate(at, below / quantile, above / quantile, noise.freedom)


def _noise_efficiency(one: Trained, smallest: int) -> dict[str, Any]:
    """By the configuration's own noise scale. An interval without an upper end leads to no loss at all."""
    if one.noise is None or one.noise.low is None:
        return {}
    high = math.inf if one.noise.high is None else one.noise.high
    ends = [predicted_efficiency(scale, one.batch, smallest) for scale in (one.noise.low, high)]
    best = None if one.noise.scale is None else predicted_efficiency(one.noise.scale, one.batch, smallest)
    return {"noise_efficiency": best, "noise_efficiency_low": ends[0], "noise_efficiency_high": ends[1]}


def _bounded(name: str, estimate: LogEstimate) -> dict[str, float | None]:
    low, high = estimate.bounds()
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}
