"""Trainings of one recipe: the same model, target and optimisation, whatever shares the work and at which global batch.

What a batch costs in samples is a matter of the recipe; frameworks, workers and what else only decides speed are
pooled. Where several configurations have one global batch, the mean of a seed over them is one value: the same seed
reads the same samples in the same order, so they are not independent. 16 bits on the wire are another recipe, in which
the runs that send nothing have their place too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.frames.baseline import DECIDING_KEYS, values_of
from analysis.frames.cache import once
from analysis.frames.comparability import own_algorithm
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.trained import evaluation_steps, rounding
from analysis.statistics import log_estimates
from analysis.statistics.censored import censored_mean
from analysis.statistics.log_estimates import LogEstimate
from analysis.statistics.noise_scale import NoiseScale, Norms, noise_scale
from analysis.to_target import critical_batch
from analysis.to_target.critical_batch import Curve, Needed

SPEED_KEYS = ("device", "compile", "memory_format", "allocator")  # decide how fast, and not what is computed
SHARED_BY = ("accumulation", "train_loop", "train_log", "train_keep")  # how a batch is shared out, who calls the steps
NOT_OF_A_RECIPE = (*SPEED_KEYS, *SHARED_BY, "cores_per_worker", "machine", "oversubscribe", "seed", "find")
RECIPE_KEYS = tuple(key for key in DECIDING_KEYS if key not in NOT_OF_A_RECIPE)


@dataclass(frozen=True)
class Trained:
    """One configuration. `speed`: samples a second of training, over its seeds. `unknown`: why it has no noise
    scale."""

    row: ConfigurationRow
    speed: LogEstimate
    noise: NoiseScale | None
    unknown: str
    seeds: int
    reached: int

    @property
    def batch(self) -> int:
        return int(self.row["global_batch"])


@dataclass(frozen=True)
class Recipe:
    """`samples`: to the target at each global batch that tells. `borrowed`: those that send nothing, at home
    elsewhere."""

    model: str
    target: str
    trained: tuple[Trained, ...]
    borrowed: tuple[Trained, ...]
    needed: tuple[Needed, ...]
    samples: Mapping[int, LogEstimate]
    curve: Curve | str

    def efficiency(self, batch: int) -> LogEstimate | None:
        """Samples to the target at the smallest global batch over those at this one."""
        if batch not in self.samples:
            return None
        return (
            log_estimates.exactly(1.0) if batch == self.smallest else self.samples[self.smallest] / self.samples[batch]
        )

    @property
    def smallest(self) -> int:
        return min(self.samples)

    def noise_at(self, batch: int) -> NoiseScale | None:
        """Of the configuration with this global batch that noted most; None where none has a scale."""
        scales = [one.noise for one in (*self.trained, *self.borrowed) if one.batch == batch and one.noise]
        return max((one for one in scales if one.scale), key=lambda one: one.rows, default=None)


@once
def recipes(results: Results) -> list[Recipe]:
    """Those with a target, in the order of the configurations."""
    whole = results.details.trained
    ours = whole[(whole.target != "") & (whole.samples > 0) & (whole.train_seconds > 0)]
    by_name = {str(name): group for name, group in ours.groupby("configuration", sort=False)}
    noted = {str(name): group for name, group in results.details.noise.groupby("configuration", sort=False)}
    homes: dict[tuple[Any, ...], dict[str, list[ConfigurationRow]]] = {}
    for row in results.rows:
        if row["configuration"] in by_name:
            wires = homes.setdefault((*values_of(row, RECIPE_KEYS), own_algorithm(row)), {})
            wires.setdefault(str(row["allreduce"]), []).append(row)
    made = []
    for wires in homes.values():
        nothing = wires.pop("none", [])
        full = nothing + wires.pop("fp32", [])
        for at_home, borrowed in ((full, []), *((rows, nothing) for rows in wires.values())):
            if at_home:
                parts = [[_trained(row, by_name, noted) for row in rows] for rows in (at_home, borrowed)]
                groups = [by_name[str(row["configuration"])] for row in (*at_home, *borrowed)]
                every = evaluation_steps(results.details.evaluations)
                made.append(_recipe(parts[0], parts[1], pd.concat(groups), every))
    return made


def _recipe(
    at_home: Sequence[Trained], borrowed: Sequence[Trained], runs: pd.DataFrame, every: dict[str, float]
) -> Recipe:
    batches = {str(one.row["configuration"]): one.batch for one in (*at_home, *borrowed)}
    needed = needed_by(runs.assign(batch=runs.configuration.map(batches)))
    samples = {}
    for batch in sorted({one.batch for one in needed}):
        of = [one for one in needed if one.batch == batch]
        known, bounds = ([one.samples for one in of if one.censored == stopped] for stopped in (False, True))
        at_batch = runs[runs.configuration.map(batches) == batch]
        mean = censored_mean(known, bounds, least_spread=rounding(at_batch, every))
        estimate = log_estimates.of_censored(mean)
        if estimate is not None:
            samples[batch] = estimate
    row = at_home[0].row
    curve = critical_batch.fit(needed)
    return Recipe(
        str(row["model"]), str(runs.target.iloc[0]), tuple(at_home), tuple(borrowed), tuple(needed), samples, curve
    )


def needed_by(runs: pd.DataFrame) -> list[Needed]:
    """One for each global batch and seed of trained.COLUMNS with `batch`: the geometric mean over configurations, only
    known to be larger where one of them was stopped before."""
    stopped = runs.target_samples.isna()
    logs = runs.target_samples.where(~stopped, runs.samples).map(math.log)
    groups = runs.assign(log=logs, stopped=stopped).groupby(["batch", "seed"])
    return [
        Needed(int(of.batch.iloc[0]), int(of.seed.iloc[0]), math.exp(float(of.log.mean())), bool(of.stopped.any()))
        for _, of in groups
    ]


def _trained(row: ConfigurationRow, runs: Mapping[str, pd.DataFrame], noted: Mapping[str, pd.DataFrame]) -> Trained:
    ours, steps = runs[str(row["configuration"])], noted.get(str(row["configuration"]))
    speed = log_estimates.of_values((ours.samples / ours.train_seconds).tolist())
    reached = int(ours.target_samples.notna().sum())
    if steps is None:
        return Trained(row, speed, None, "not recorded", len(ours), reached)
    unknown, told = sorted(set(steps.unknown[steps.unknown != ""])), steps[steps.unknown == ""]
    if told.empty:
        return Trained(row, speed, None, "; ".join(unknown) or "no step was noted", len(ours), reached)
    scale = noise_scale(list(_norms(told)))
    return Trained(row, speed, scale, scale.verdict, len(ours), reached)


def _norms(steps: pd.DataFrame) -> Iterable[Norms]:
    """Of each seed, and of each pair of batch sizes should they differ, in the order of its steps."""
    for _, ours in steps.groupby(["seed", "small_batch", "big_batch"]):
        ordered = ours.sort_values("step")
        batches = float(ordered.small_batch.iloc[0]), float(ordered.big_batch.iloc[0])
        yield Norms(*batches, ordered.small_sqr.to_numpy(), ordered.big_sqr.to_numpy())
