"""The cost of a larger batch in samples: recipes, the critical batch size, the gradient noise scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from analysis.frames.configurations import DECIDING_KEYS, failed, own_algorithm, values_of
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow, grouped
from analysis.frames.training import brackets
from analysis.statistics import estimates
from analysis.statistics.estimates import LogEstimate, censored_mean
from scaling_study.stats.intervals import FEWEST_REPEATS, Interval, between_repeats, freedom_within, within_run

# The gradient noise scale, from norms of gradients at two batch sizes (McCandlish et al., arXiv 1812.06162, A.1).
# The mean of |g|^2 over batches of b samples is |G|^2 + S / b: of the true gradient, and of the noise of one sample.
# From a small batch b and a big one B, both at the same step,
#
#     |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b)        S = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)        scale = S / |G|^2
#
# Each is unbiased, their ratio is not, and a single |G|^2 can be negative: both are averaged over steps before they are
# divided. The interval of the ratio is Fieller's (J. R. Stat. Soc. B 16, 1954): it holds each scale r for which the
# mean of S - r |G|^2 may be 0, between runs where there are at least three, else within the run.

FEWEST_ROWS = 8  # steps of all runs, below which nothing is claimed
LARGEST = 1e12  # samples; no scale is looked for beyond
CONTRADICTORY = "larger batches have larger gradients"
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Norms:
    """Squared gradient norms of one run, each (steps,): at `small_batch`, the mean over ranks, and at `big_batch`."""

    small_batch: float
    big_batch: float
    small_sqr: ArrayLike
    big_sqr: ArrayLike

    def parts(self) -> tuple[Values, Values]:
        """(|G|^2, S) of each step: unbiased, and of a single step of either sign."""
        b, big = self.small_batch, self.big_batch
        small_sqr, big_sqr = np.asarray(self.small_sqr, float), np.asarray(self.big_sqr, float)
        return (big * big_sqr - b * small_sqr) / (big - b), (small_sqr - big_sqr) / (1 / b - 1 / big)


@dataclass(frozen=True)
class NoiseScale:
    """In samples, with its 95 % interval: `high` None where it has no upper end, `scale` None where the mean of |G|^2
    is not above 0, all None where nothing is claimed (`verdict`). `freedom`: degrees of freedom of the interval."""

    scale: float | None
    low: float | None
    high: float | None
    freedom: float
    rows: int  # steps of all runs
    verdict: str = ""


def noise_scale(runs: Sequence[Norms]) -> NoiseScale:
    """The noise scale of one configuration, from one run for each seed. Raises ValueError for norms not finite."""
    parts = [run.parts() for run in runs if np.size(run.small_sqr)]
    count, rows = len(parts), sum(len(sqr) for sqr, _ in parts)
    if rows < FEWEST_ROWS:
        return NoiseScale(None, None, None, 0, rows, f"{rows} of {FEWEST_ROWS} steps")
    interval: Callable[[ArrayLike], Interval]
    if count >= FEWEST_REPEATS:
        sqr, variance = (np.array([part[i].mean() for part in parts]) for i in (0, 1))
        interval, freedom = between_repeats, float(count - 1)
    else:  # one after another: what two runs differ by is slow variation
        sqr, variance = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        interval, freedom = within_run, float(freedom_within(rows))
    return _fieller(variance, sqr, interval, freedom, rows)


def noise_over_seeds(runs: Mapping[int, Sequence[Norms]]) -> NoiseScale:
    """The noise scale of one recipe, from the runs of each seed at all of its batch sizes: the mean of S over that of
    |G|^2. Runs of one seed share initial weights and the order of the data, so they are one value between seeds."""
    parts = {seed: [run.parts() for run in ours] for seed, ours in runs.items()}
    means = [[np.mean([part[i].mean() for part in ours]) for i in (0, 1)] for ours in parts.values() if ours]
    rows = sum(len(sqr) for ours in parts.values() for sqr, _ in ours)
    if len(means) < FEWEST_REPEATS:
        return NoiseScale(None, None, None, 0, rows, f"{len(means)} of {FEWEST_REPEATS} seeds")
    sqr, variance = np.array(means).T
    return _fieller(variance, sqr, between_repeats, len(means) - 1.0, rows)


def _fieller(
    above: Values, under: Values, interval: Callable[[ArrayLike], Interval], freedom: float, rows: int
) -> NoiseScale:
    """The ratio of the means, which cannot be negative, with its bounds."""

    def beyond(ratio: float, side: int) -> float:
        """Above 0 where the mean of above - ratio x under is surely above 0 (side 1), or surely below (side -1)."""
        of = interval(above - ratio * under)
        assert of.low is not None and of.high is not None
        return of.low if side == 1 else -of.high

    least = interval(under)
    assert least.low is not None and least.high is not None
    if beyond(0.0, -1) > 0 or (least.high < 0 and least.mean < 0):
        return NoiseScale(None, None, None, freedom, rows, CONTRADICTORY)
    scale = float(above.mean() / under.mean()) if above.mean() > 0 and under.mean() > 0 else None
    start = scale or 1.0
    low = 0.0 if beyond(0.0, 1) <= 0 else crossing(lambda ratio: beyond(ratio, 1), 0.0, start)
    high = None
    if least.low > 0:
        high = crossing(lambda ratio: -beyond(ratio, -1), scale or 0.0, start)
    return NoiseScale(scale, low, high, freedom, rows)


def crossing(of: Callable[[float], float], inside: float, reach: float) -> float | None:
    """Where `of`, above 0 at `inside`, falls to 0; looked for first as far above as `reach`, at last as far as LARGEST.
    None where it is above 0 up to there."""
    while of(inside + reach) > 0:
        reach *= 2
        if reach > LARGEST:
            return None
    return float(optimize.brentq(of, inside, inside + reach, rtol=1e-6))


def predicted_efficiency(scale: float, batch: float, smallest: float) -> float:
    """Samples needed at the smallest batch over those at `batch`, by a noise scale (McCandlish et al., eq. 2.11)."""
    return (smallest + scale) / (batch + scale) if math.isfinite(scale) else 1.0


# Trainings of one recipe: the same model, target and optimisation. Frameworks, workers and what else only decides speed
# are pooled. Where several configurations have one global batch, the mean of a seed over them is one value: the same
# seed reads the same samples in the same order. 16 bits on the wire are another recipe, in which the runs that send
# nothing have their place too.

# Decide how fast, and not what is computed.
KERNELS = ("compile", "compile_scope", "optimizer_kernels", "checkpoint")
KERNEL_KEYS = (*KERNELS, "memory_format", "gelu", "vocabulary", "cross_entropy")
SPEED_KEYS = ("device", "allocator", *KERNEL_KEYS)
SHARED_BY = ("accumulation", "train_loop", "train_log", "train_keep")  # how a batch is shared out, who calls the steps
NOT_OF_A_RECIPE = (*SPEED_KEYS, *SHARED_BY, "cores_per_worker", "machine", "oversubscribe", "seed", "find")
RECIPE_KEYS = tuple(key for key in DECIDING_KEYS if key not in NOT_OF_A_RECIPE)


@dataclass(frozen=True)
class Trained:
    """One configuration. `speed`: samples a second of training, over its seeds. `unknown`: why it has no noise
    scale. `norms`: (seed, norms) of its runs."""

    row: ConfigurationRow
    speed: LogEstimate
    noise: NoiseScale | None
    unknown: str
    seeds: int
    reached: int
    norms: tuple[tuple[int, Norms], ...] = ()

    @property
    def batch(self) -> int:
        return int(self.row["global_batch"])


@dataclass(frozen=True)
class BatchRecipe:
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
        return estimates.exactly(1.0) if batch == self.smallest else self.samples[self.smallest] / self.samples[batch]

    @property
    def smallest(self) -> int:
        return min(self.samples)

    @cached_property
    def noise(self) -> NoiseScale:
        """The noise scale over all seeds and global batches."""
        runs: dict[int, list[Norms]] = {}
        for one in (*self.trained, *self.borrowed):
            for seed, norms in one.norms:
                runs.setdefault(seed, []).append(norms)
        return noise_over_seeds(runs)

    @property
    def critical_over_noise(self) -> LogEstimate | None:
        """The critical batch size over the noise scale; None where one of them is not known. Their errors are taken to
        be independent."""
        curve, noise = self.curve, self.noise
        if isinstance(curve, str) or curve.critical is None or noise.scale is None:
            return None
        critical = estimates.between(curve.critical, curve.low, curve.high, curve.freedom)
        return critical / estimates.between(noise.scale, noise.low, noise.high, noise.freedom)

    def noise_at(self, batch: int) -> NoiseScale | None:
        """The noise scale at this global batch with most noted steps; None where there is none."""
        scales = [one.noise for one in (*self.trained, *self.borrowed) if one.batch == batch and one.noise]
        return max((one for one in scales if one.scale), key=lambda one: one.rows, default=None)


@once
def recipes(results: Results) -> list[BatchRecipe]:
    """Every recipe that was trained to a target, in the order of the configurations; without those that failed parity,
    whose samples are of another training."""
    whole = results.details.trained
    ours = whole[(whole.target != "") & (whole.samples > 0) & (whole.train_seconds > 0)]
    by_name = {str(name): group for name, group in ours.groupby("configuration", sort=False)}
    noted = {str(name): group for name, group in results.details.noise.groupby("configuration", sort=False)}
    trained = [row for row in results.rows if row["configuration"] in by_name and not failed(row)]
    made = []
    for alike in grouped(trained, lambda row: (*values_of(row, RECIPE_KEYS), own_algorithm(row))).values():
        wires = grouped(alike, lambda row: str(row["allreduce"]))
        nothing = wires.pop("none", [])
        full = nothing + wires.pop("fp32", [])
        for rows, elsewhere in ((full, []), *((rows, nothing) for rows in wires.values())):
            if rows:
                at_home, borrowed = (tuple(_trained(row, by_name, noted) for row in of) for of in (rows, elsewhere))
                runs = pd.concat([by_name[str(row["configuration"])] for row in (*rows, *elsewhere)])
                made.append(_recipe(at_home, borrowed, runs))
    return made


def _recipe(at_home: tuple[Trained, ...], borrowed: tuple[Trained, ...], runs: pd.DataFrame) -> BatchRecipe:
    batches = {str(one.row["configuration"]): one.batch for one in (*at_home, *borrowed)}
    needed = needed_by(runs.assign(batch=runs.configuration.map(batches)))
    samples = {}
    for batch, of in sorted(grouped(needed, lambda one: one.batch).items()):
        mean = censored_mean([one.after for one in of], [one.by for one in of])
        if (estimate := estimates.of_censored(mean)) is not None:
            samples[batch] = estimate
    model, target = str(at_home[0].row["model"]), str(runs.target.iloc[0])
    return BatchRecipe(model, target, at_home, borrowed, tuple(needed), samples, fit(needed))


def needed_by(runs: pd.DataFrame) -> list[Needed]:
    """One for each global batch and seed of trained.COLUMNS with `batch`: the geometric means, over configurations, of
    both bounds."""
    after, by = brackets(runs, "samples")
    groups = runs.assign(after=after, by=by).groupby(["batch", "seed"])
    return [
        Needed(int(of.batch.iloc[0]), int(of.seed.iloc[0]), float(stats.gmean(of.after)), float(stats.gmean(of.by)))
        for _, of in groups
    ]


def _trained(row: ConfigurationRow, runs: Mapping[str, pd.DataFrame], noted: Mapping[str, pd.DataFrame]) -> Trained:
    ours, steps = runs[str(row["configuration"])], noted.get(str(row["configuration"]))
    speed = estimates.of_values((ours.samples / ours.train_seconds).tolist())
    reached = int(ours.target_samples.notna().sum())
    if steps is None:
        return Trained(row, speed, None, "not recorded", len(ours), reached)
    unknown, told = sorted(set(steps.unknown[steps.unknown != ""])), steps[steps.unknown == ""]
    if told.empty:
        return Trained(row, speed, None, "; ".join(unknown) or "no step was noted", len(ours), reached)
    norms = tuple(
        (
            int(of.seed.iloc[0]),
            Norms(
                float(of.small_batch.iloc[0]),
                float(of.big_batch.iloc[0]),
                of.small_sqr.to_numpy(),
                of.big_sqr.to_numpy(),
            ),
        )
        for _, of in told.sort_values("step").groupby(["seed", "small_batch", "big_batch"])
    )
    scale = noise_scale([each for _, each in norms])
    return Trained(row, speed, scale, scale.verdict, len(ours), reached, norms)


# The critical batch size, measured directly (Shallue et al., arXiv 1811.03600), as
#
#     steps(B) = Smin (1 + Bcrit / B)        samples(B) = Smin (B + Bcrit)
#
# (McCandlish et al., eq. 2.11), fitted to every seed by maximum likelihood. Samples are log-normal around the curve,
# with one spread at all batch sizes. A target is met at an evaluation, so of a seed only the probability counts that it
# needed more samples than at the evaluation before and at most those at the one that met it; of a seed that never
# reached the target, that of needing more than it got. Intervals are of the profile likelihood.

PARAMETERS = 2
BEYOND = 1000.0  # how far below the smallest and above the largest batch a critical one is looked for
POINTS = 241
FEWEST_ALLOWED = 12  # candidates that the data allow, of which the lowest and the highest are as good as the ends
LEVEL = 1e-4  # of the deviance, up to which candidates fit equally well


@dataclass(frozen=True)
class Needed:
    """Samples that one seed needed at one global batch: more than `after`, at most `by`. `after` 0: the first
    evaluation met the target; `by` infinite: it was stopped before."""

    batch: int
    seed: int
    after: float
    by: float


@dataclass(frozen=True)
class Curve:
    """The fit. `critical` in samples, None where it lies beyond what the batches can tell: then one of its 95 % bounds
    may still stand. `steps`: Smin."""

    batches: tuple[int, ...]
    seeds: int
    critical: float | None
    low: float | None
    high: float | None
    steps: float | None
    logs: Values  # (points,) of candidates for the critical batch that the data allow
    smallest: Values  # (points,) log Smin that fits best with each
    best: int
    freedom: float
    bounds: tuple[Values, Values]  # (points, n) each: bounds of log Smin of each seed alone
    most: float  # cost that the 95 % intervals allow

    @cached_property
    def ends(self) -> tuple[Values, Values]:
        """(points,) each: the lowest and the highest log Smin that the data allow with each candidate."""
        return estimates.ends(*self.bounds, self.smallest, self.most)

    def samples(self, batch: float) -> LogEstimate:
        """Needed at `batch`, with what the fit leaves open."""
        more = np.log(batch + np.exp(self.logs))
        low, high = float((self.ends[0] + more).min()), float((self.ends[1] + more).max())
        quantile, log = float(stats.t.ppf(0.975, self.freedom)), float((self.smallest + more)[self.best])
        return LogEstimate(log, (log - low) / quantile, (high - log) / quantile, self.freedom)


def fit(needed: Sequence[Needed]) -> Curve | str:
    """The curve of one recipe and target, or the reason why there is none."""
    known = [one for one in needed if math.isfinite(one.by)]
    batches = sorted({one.batch for one in known})
    if len(batches) < PARAMETERS:
        return f"the target was reached at {len(batches)} global batch size{'s' * (len(batches) != 1)}, not at two"
    freedom, total = len(known) - PARAMETERS, len(needed)
    if freedom < 1:
        return f"{len(known)} seeds reached the target: too few for an interval"
    if not any(one.after for one in needed):
        return "every seed met the target at its first evaluation"
    batch = np.array([float(one.batch) for one in needed])
    bounds = estimates.widened(*estimates.log_bounds([one.after for one in needed], [one.by for one in needed]))
    logs = np.linspace(math.log(batches[0] / BEYOND), math.log(batches[-1] * BEYOND), POINTS)

    def fitted(logs: Values) -> tuple[Values, Values, Values, Values]:
        """(bounds of log Smin of each seed, (points, n) each; the best log Smin and its cost, (points,) each)."""
        of_batch = np.log(batch + np.exp(logs)[:, None])
        low, high = (bound - of_batch for bound in bounds)
        smallest, _, cost = estimates.likeliest(low, high)
        return low, high, smallest, cost

    low, high, smallest, cost = fitted(logs)
    lowest = float(cost.min())
    most = lowest + estimates.student_deviance(float(stats.t.ppf(0.975, freedom)), total, freedom) / 2
    alike = np.flatnonzero(cost <= cost.min() + LEVEL)
    best = int(alike[len(alike) // 2])  # where evaluations are far apart, many candidates fit equally well
    critical = steps = None
    if alike[0] > 0 and alike[-1] < len(logs) - 1:
        critical, steps = math.exp(float(logs[best] + _to_bottom(cost, best, logs))), math.exp(smallest[best])
    under, over = (_bound(logs, cost, most, best, side) for side in (-1, 1))
    allowed = np.flatnonzero(cost <= most)
    if len(allowed) < FEWEST_ALLOWED:  # seeds that are nearly alike: among those allowed, and their neighbours, closer
        first, last = max(0, allowed[0] - 1), min(len(logs) - 1, allowed[-1] + 1)
        logs = np.linspace(logs[first], logs[last], POINTS)
        low, high, smallest, cost = fitted(logs)
        most += min(0.0, float(cost.min()) - lowest)
        alike, allowed = np.flatnonzero(cost <= cost.min() + LEVEL), np.flatnonzero(cost <= most)
        best = int(alike[len(alike) // 2])
    return Curve(
        tuple(batches),
        len({one.seed for one in needed}),
        critical,
        under,
        over,
        steps,
        logs[allowed],
        smallest[allowed],
        int(np.searchsorted(allowed, best)),
        float(freedom),
        (low[allowed], high[allowed]),
        most,
    )


def _to_bottom(cost: Values, best: int, logs: Values) -> float:
    """From the best candidate to the bottom of the parabola through it and its neighbours; 0 where it is flat."""
    before, at, after = cost[best - 1 : best + 2]
    bend = before - 2 * at + after
    return float(np.clip(0.5 * (before - after) / bend, -0.5, 0.5) * (logs[1] - logs[0])) if bend > LEVEL else 0.0


def _bound(logs: Values, cost: Values, most: float, best: int, side: int) -> float | None:
    """Where the cost rises above `most` on one side of the best; None where it does not."""
    place = best
    while cost[place] <= most:
        place += side
        if not 0 <= place < len(logs):
            return None
    share = (most - cost[place - side]) / (cost[place] - cost[place - side])
    return math.exp(float(logs[place - side] + side * share * (logs[1] - logs[0])))
