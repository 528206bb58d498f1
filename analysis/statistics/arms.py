"""Does pre-training help, and does training the backbone? Trainings that differ in one of the two alone.

    configurations that differ in their learning rates alone        -> an arm; its rate is chosen on validation data
    arms that differ in the weights they begin with, or in what is frozen, alone   -> a pair, compared seed by seed

Every arm chooses by the same rule, among the rates that were tried with it: the best mean over the seeds of the metric
that the best model is chosen by, on validation data. What is compared are the test figures of the chosen ones alone, so
nothing is chosen by the test set. One seed is one order of the data and one set of heads, so differences are taken
within a seed, and their interval is Student's over the seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.configurations import KEYS, known, values_of
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow, bounded, grouped
from analysis.frames.training import METRICS
from scaling_study.records.maps import OWN
from scaling_study.stats.intervals import FEWEST_REPEATS, Interval, between_repeats
from scaling_study.targets import CHOSEN_BY
from scaling_study.targets import METRICS as DIRECTIONS

RATES = ("learning_rate", "part_learning_rates")
RANDOM, NOTHING = "random", "none"
VARIED = ("weights", "freeze")  # what tells arms of one recipe apart
NOT_OF_A_RECIPE = (*RATES, *VARIED, "seed", "train_log", "train_keep")
POINTING = "pointing"  # of the model's own class maps, at the instrument: the one figure here that no metric is
HELPS, HARMS, NOT_RESOLVED, TOO_FEW = "helps", "harms", "not resolved", "too few seeds"
LAST = 0.25  # of the steps: how much of the budget's end is looked at
ALIKE = 1e-9  # relative: seeds whose differences agree to the last digit


@dataclass(frozen=True)
class Arm:
    """Trainings that differ in their learning rates alone. `rows`: in the order of their rates."""

    weights: str
    freeze: str
    rows: tuple[ConfigurationRow, ...]
    chosen: ConfigurationRow
    metric: str  # by which it was chosen
    validation: Mapping[str, float]  # configuration -> mean over the seeds
    rise: float | None  # of that metric on validation data over the last quarter of the steps, of the chosen one

    @property
    def configuration(self) -> str:
        return str(self.chosen["configuration"])

    @property
    def at_edge(self) -> str:
        """`lowest` or `highest`, where the chosen rate is that of several that were tried; else empty."""
        rates = [float(row["learning_rate"]) for row in self.rows if known(row["learning_rate"])]
        own = self.chosen["learning_rate"]
        if len(set(rates)) < 2 or not known(own) or len(set(rates)) < len(self.rows):
            return ""
        return "lowest" if own == min(rates) else "highest" if own == max(rates) else ""


@dataclass(frozen=True)
class ArmPair:
    """`ours`: pre-trained, where `varied` is the weights; the trained backbone, where it is what is frozen."""

    varied: str
    ours: Arm
    theirs: Arm


@once
def pairs(results: Results) -> list[ArmPair]:
    """Pairs that differ in weights come first; none where no two trainings differ in one of VARIED alone."""
    trained = {str(name) for name in results.details.trained.configuration.unique()}
    rows = [row for row in results.rows if row["configuration"] in trained]
    recipe = [key for key in KEYS if key not in NOT_OF_A_RECIPE]
    compared = []
    for of_recipe in grouped(rows, lambda row: values_of(row, recipe)).values():
        groups = grouped(of_recipe, lambda row: (begins_with(row), frozen(row)))
        if len(groups) > 1:
            for ours, theirs in permutations((_arm(results, *of, rows) for of, rows in groups.items()), 2):
                if ours.freeze == theirs.freeze and ours.weights != RANDOM and theirs.weights == RANDOM:
                    compared.append(ArmPair("weights", ours, theirs))
                elif ours.weights == theirs.weights and ours.freeze == NOTHING and theirs.freeze != NOTHING:
                    compared.append(ArmPair("freeze", ours, theirs))
    return sorted(
        compared,
        key=lambda pair: (
            str(pair.ours.chosen["model"]),
            VARIED.index(pair.varied),
            pair.ours.freeze == NOTHING,
            pair.ours.weights,
        ),
    )


def of_weights(results: Results) -> list[tuple[Arm, Arm]]:
    """(pre-trained, random) of each pair."""
    return [(pair.ours, pair.theirs) for pair in pairs(results) if pair.varied == "weights"]


def begins_with(row: ConfigurationRow) -> str:
    """`random`, or the name of the weights."""
    weights = row["weights"]
    return str(weights) if known(weights) and weights != NOTHING else RANDOM


def frozen(row: ConfigurationRow) -> str:
    """`none`, or the part that is not trained."""
    freeze = row["freeze"]
    return str(freeze) if known(freeze) else NOTHING


def arm_pairs_table(results: Results) -> pd.DataFrame:
    """A row for each pair and figure of the test set. `difference`: ours less theirs."""
    return pd.DataFrame([row for pair in pairs(results) for row in _compared(results, pair)])


def _arm(results: Results, weights: str, freeze: str, rows: Sequence[ConfigurationRow]) -> Arm:
    rows = sorted(rows, key=lambda row: (not known(row["learning_rate"]), row["learning_rate"], rate(row)))
    names = [str(row["configuration"]) for row in rows]
    evaluations, trained = results.details.evaluations, results.details.trained
    metric = _metric(rows[0], evaluations[evaluations.configuration.isin(names)])
    each = {name: _validated(evaluations, trained, row, metric) for name, row in zip(names, rows, strict=True)}
    common = set.intersection(*map(set, each.values()))
    means = {
        name: float(np.mean([value for seed, value in values.items() if seed in common or not common] or [np.nan]))
        for name, values in each.items()
    }
    sign = 1 if DIRECTIONS[metric][0] else -1
    best = max(names, key=lambda name: -np.inf if np.isnan(means[name]) else sign * means[name])
    return Arm(
        weights,
        freeze,
        tuple(rows),
        rows[names.index(best)],
        metric,
        means,
        _rise(evaluations[evaluations.configuration == best], metric),
    )


def _metric(row: ConfigurationRow, evaluations: pd.DataFrame) -> str:
    """By which the training itself chose its best model: the target's, else the first that it has."""
    target = row["train_target"]
    if known(target):
        return str(target).partition("=")[0]
    return next((name for name in (CHOSEN_BY, *METRICS) if evaluations[name].notna().any()), "loss")


def _validated(
    evaluations: pd.DataFrame, trained: pd.DataFrame, row: ConfigurationRow, metric: str
) -> dict[int, float]:
    """Seed -> the metric on validation data of the model that was tested: the best with patience, else the last."""
    ours = trained[trained.configuration == row["configuration"]]
    tested = ours.best_step.fillna(ours.steps) if known(row["train_patience"]) else ours.steps
    theirs = evaluations.loc[evaluations.configuration == row["configuration"], ["repeat", "steps", metric]]
    met = ours[["repeat", "seed"]].assign(steps=tested).merge(theirs.dropna(), on=["repeat", "steps"])
    return dict(zip(met.seed.tolist(), met[metric].tolist(), strict=True))


def _rise(evaluations: pd.DataFrame, metric: str) -> float | None:
    """How much better the last evaluation is than that before the last quarter of the steps, mean over the seeds."""
    rises = []
    for _, ours in evaluations.dropna(subset=[metric]).sort_values("steps").groupby("repeat"):
        early = ours[ours.steps <= (1 - LAST) * ours.steps.iloc[-1]]
        if len(early):
            rises.append(float(ours[metric].iloc[-1] - early[metric].iloc[-1]))
    return float(np.mean(rises)) if rises else None


def _compared(results: Results, pair: ArmPair) -> Iterator[dict[str, Any]]:
    ours, theirs = pair.ours, pair.theirs
    for figure in (*METRICS, POINTING):
        a, b = (_tested(results, arm.configuration, figure) for arm in (ours, theirs))
        seeds = sorted(a.keys() & b.keys())
        if not seeds:
            continue
        difference = over_seeds([a[seed] - b[seed] for seed in seeds])
        ours_and_theirs: dict[str, Any] = {}
        for name, tested in (("ours", a), ("theirs", b)):
            mean = between_repeats([tested[seed] for seed in seeds])
            ours_and_theirs |= bounded(name, mean.mean, mean.low, mean.high)
        yield {
            "model": ours.chosen["model"],
            "varied": pair.varied,
            "weights": ours.weights,
            "freeze": ours.freeze,
            "other_weights": theirs.weights,
            "other_freeze": theirs.freeze,
            "figure": figure,
            "seeds": len(seeds),
            **ours_and_theirs,
            **bounded("difference", difference.mean, difference.low, difference.high),
            "verdict": verdict(difference, figure),
            "rate": rate(ours.chosen),
            "other_rate": rate(theirs.chosen),
            "rates_tried": len(ours.rows),
            "other_rates_tried": len(theirs.rows),
            "chosen_by": ours.metric,
            "configuration": ours.configuration,
            "other_configuration": theirs.configuration,
        }


def _tested(results: Results, configuration: str, figure: str) -> dict[int, float]:
    """Seed -> a figure of the test set."""
    if figure == POINTING:
        videos = results.maps.videos
        own = videos[(videos.configuration == configuration) & (videos.method == OWN)]
        means = own.groupby("seed")["mask"].mean()
        return {int(seed): float(value) for seed, value in means.items() if pd.notna(value)}  # type: ignore[call-overload]
    trained = results.details.trained
    ours = trained[trained.configuration == configuration]
    values = zip(ours.seed, ours[f"test_{figure}"], strict=True)
    return {int(seed): float(value) for seed, value in values if pd.notna(value) and np.isfinite(value)}


def over_seeds(differences: Sequence[float]) -> Interval:
    """Of their mean. None is claimed where all agree, as figures of a small test set may: they show no spread."""
    found = between_repeats(differences)
    if found.half_width is not None and found.half_width <= ALIKE * abs(found.mean):
        return replace(found, low=None, high=None)
    return found


def verdict(difference: Interval, figure: str) -> str:
    """HELPS, HARMS, NOT_RESOLVED or TOO_FEW, from the difference ours less theirs."""
    if difference.low is None or difference.high is None:
        return TOO_FEW if difference.n < FEWEST_REPEATS else NOT_RESOLVED
    more_is_better = figure == POINTING or DIRECTIONS[figure][0]
    if difference.low > 0:
        return HELPS if more_is_better else HARMS
    return NOT_RESOLVED if difference.high >= 0 else HARMS if more_is_better else HELPS


def rate(row: ConfigurationRow) -> str:
    """`0.001`, with those of parts."""
    whole, parts = row["learning_rate"], row["part_learning_rates"]
    return ", ".join([f"{whole:g}"] * known(whole) + [str(parts)] * known(parts)) or "the workload's own"
