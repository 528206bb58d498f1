"""Does pre-training help? Arms of one recipe, each at the learning rate that was its best on validation data.

arm     weights x freeze                          random and frozen, ImageNet's and frozen, random and trained, ...
rate    the one whose best evaluations are best, mean over the seeds that all rates of the arm have; no test is read
pair    two arms that differ in one of the two    difference of the test's figures, seed by seed
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.frames.baseline import known, values_of
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.trained import METRICS
from analysis.to_target.recipes import RECIPE_KEYS
from scaling_study.models import model_named
from scaling_study.stats.intervals import between_repeats
from scaling_study.targets import METRICS as DIRECTIONS

ARM = ("weights", "freeze")
TUNED = ("learning_rate", "part_learning_rates")
SAME = (*(key for key in RECIPE_KEYS if key not in (*ARM, *TUNED)), "framework", "workers", "global_batch")
COLUMNS = (
    *("model", "varied", "ours", "theirs", "fixed", "ours_configuration", "theirs_configuration"),
    *("ours_rate", "theirs_rate", "ours_rates_tried", "theirs_rates_tried", "chosen_by"),
    *("metric", "seeds", "ours_mean", "theirs_mean", "difference", "difference_low", "difference_high"),
)


@dataclass(frozen=True)
class Arm:
    """One of several trainings of a recipe, at its best rate. `tests`: seed -> the test's figures."""

    row: ConfigurationRow
    tests: pd.DataFrame
    tried: int  # rates
    metric: str  # that chose among them

    def name(self, key: str) -> str:
        value = dict(self.row)[key] if known(dict(self.row)[key]) else None
        if key == "weights":
            return f"weights {value}" if value else "random weights"
        return f"{value} frozen" if value else "all trained"


def table(results: Results) -> pd.DataFrame:
    """COLUMNS: each pair of arms, a row for each figure of the test. Intervals are 95 %, Student's, of the differences
    by seed; none below three seeds."""
    rows = [row for arms in _recipes(results) for row in _compared(arms)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _recipes(results: Results) -> Iterator[list[Arm]]:
    """The arms of each recipe that has two or more."""
    trained = results.details.trained
    tests = {str(name): rows.set_index("seed") for name, rows in trained.groupby("configuration", sort=False)}
    best = _best(results)
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[ConfigurationRow]]] = {}
    for row in sorted(results.rows, key=lambda row: row["series_order"]):
        if row["configuration"] in tests:
            groups.setdefault(values_of(row, SAME), {}).setdefault(values_of(row, ARM), []).append(row)
    for arms in groups.values():
        if len(arms) > 1:
            yield [_chosen(rates, tests, best) for rates in arms.values()]


def _best(results: Results) -> dict[str, dict[int, Mapping[str, float]]]:
    """Configuration -> seed -> the best value of each metric among its evaluations."""
    trained, found = results.details.trained, dict[str, dict[int, Mapping[str, float]]]()
    seeds = dict(zip(zip(trained.configuration, trained.repeat, strict=True), trained.seed, strict=True))
    for (name, repeat), rows in results.details.evaluations.groupby(["configuration", "repeat"], sort=False):
        of = {metric: rows[metric].max() if DIRECTIONS[metric][0] else rows[metric].min() for metric in METRICS}
        found.setdefault(str(name), {})[int(seeds[name, repeat])] = of
    return found


def _chosen(
    rates: Sequence[ConfigurationRow], tests: Mapping[str, pd.DataFrame],
    best: Mapping[str, Mapping[int, Mapping[str, float]]],
) -> Arm:  # fmt: skip
    """The arm at the rate of these that is best on validation data."""
    metric = next(iter(model_named(rates[0]["model"]).metrics), "loss")
    names = [row["configuration"] for row in rates]
    common = set.intersection(*(set(best.get(name, {})) for name in names))
    sign = 1 if DIRECTIONS[metric][0] else -1

    def merit(row: ConfigurationRow) -> float:
        values = [sign * best[row["configuration"]][seed][metric] for seed in common]
        return sum(values) / len(values) if values and all(map(known, values)) else float("-inf")

    row = max(rates, key=merit)
    return Arm(row, tests[row["configuration"]], len(rates), metric)


def _compared(arms: Sequence[Arm]) -> Iterator[dict[str, Any]]:
    for theirs, ours in itertools.combinations(sorted(arms, key=_rank), 2):
        unlike = [key for key in ARM if ours.name(key) != theirs.name(key)]
        if len(unlike) == 1:
            yield from _differences(ours, theirs, unlike[0])


def _rank(arm: Arm) -> tuple[bool, ...]:
    """Random before pre-trained, frozen before trained."""
    weights, freeze = (known(dict(arm.row)[key]) for key in ARM)
    return weights, not freeze


def _differences(ours: Arm, theirs: Arm, varied: str) -> Iterator[dict[str, Any]]:
    both = ours.tests.join(theirs.tests.add_suffix("_of_theirs"), how="inner")
    (fixed,) = (ours.name(key) for key in ARM if key != varied)
    for metric in METRICS:
        a, b = both[f"test_{metric}"], both[f"test_{metric}_of_theirs"]
        there = a.notna() & b.notna()
        if not there.any():
            continue
        interval = between_repeats((a - b)[there].to_numpy())
        yield {
            "model": ours.row["model"], "varied": varied, "ours": ours.name(varied), "theirs": theirs.name(varied),
            "fixed": fixed, "ours_configuration": ours.row["configuration"],
            "theirs_configuration": theirs.row["configuration"], "ours_rate": ours.row["learning_rate"],
            "theirs_rate": theirs.row["learning_rate"], "ours_rates_tried": ours.tried,
            "theirs_rates_tried": theirs.tried, "chosen_by": ours.metric, "metric": metric, "seeds": int(there.sum()),
            "ours_mean": a[there].mean(), "theirs_mean": b[there].mean(), "difference": interval.mean,
            "difference_low": interval.low, "difference_high": interval.high,
        }  # fmt: skip
