"""How sure a number is: 95 % intervals within a run, between repeats, and of a ratio of two configurations.

Within a run the steps are autocorrelated, so s/sqrt(n) is too short. The long-run variance is estimated by the equal-
weighted cosine estimator (Mueller, J. Econometrics 141, 2007; Lazarus, Lewis, Stock and Watson, "HAR Inference:
Recommendations for Practice", J. Bus. Econ. Stat. 36(4), 2018): the mean square of the first B type-II cosine
coefficients of the series. Under it the studentised mean is Student t with B degrees of freedom: exactly for white
Gaussian noise, and in the limit for any short-memory series. What it misses of a very persistent one is put back by the
series' lag-one autocorrelation.

What is claimed of a configuration is always the interval between its repeats, never the one within a run: fresh
processes differ by more than the steps of one process do. Imports numpy, and scipy only when a function is called.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

FEWEST_STEPS = 6  # two in a third: below, one slow step would be a trend


def step_trend(step_seconds: Sequence[float]) -> float | None:
    """The median of the last third of the steps over that of the first, less 1: -0.03 became 3 % faster.

    Medians: single slow steps are no trend. None for fewer than FEWEST_STEPS, or where steps took no time. A trend of
    one run alone proves nothing: it is tested over the repeats (analysis/views/timing.py).
    """
    third = len(step_seconds) // 3
    if len(step_seconds) < FEWEST_STEPS or not (first := median(step_seconds[:third])):
        return None
    return median(step_seconds[-third:]) / first - 1


TOO_SHORT = "too short"
TOO_FEW = "too few repeats"
SHORTEST_SERIES = 50  # steps; below, coverage is not kept at phi = 0.5
FEWEST_REPEATS = 3
LEAST_COVERAGE = 0.92  # a series is labelled too short when its 95 % would be less than this without correction
PHI_LIMIT = 0.97  # of the estimated lag-one autocorrelation, so that no interval is infinite
MOST_REPEATS = 1_000_000  # where repeats_needed stops counting
Row = np.ndarray[Any, np.dtype[np.float64]]  # (n,), or one value a run
Rows = np.ndarray[Any, np.dtype[np.float64]]  # (runs, n)
Values = TypeVar("Values", Row, list[float])
Numbers = TypeVar("Numbers", float, Row)


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval, both in the unit of what was averaged.

    `low` and `high` are None where no interval is claimed. `n` counts the values. `verdict`: why the interval should
    not be relied on, or empty.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    verdict: str = ""

    @property
    def half_width(self) -> float | None:
        """Half of high - low, or None."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def relative_half_width(self) -> float | None:
        """half_width over the mean (0.02: +-2 %), to hold against a study's target_interval; None if unknown."""
        half = self.half_width
        return None if half is None or self.mean == 0 else half / abs(self.mean)

    def mapped(self, change: Callable[[float], float]) -> Interval:
        """The interval of a function of what was averaged that grows with it."""
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return replace(self, mean=change(self.mean), low=low, high=high)


def within_run(step_seconds: ArrayLike) -> Interval:
    """95 % interval of the mean of one run's step seconds, corrected for their autocorrelation.

    `step_seconds`: (n,) seconds, in the order of the steps. The verdict is "too short" when coverage cannot be relied
    on: n < 50, or steps so persistent that they hardly vary within their own run (tests/stats/test_intervals.py). No
    interval for n < 2. Raises ValueError for an empty or non-finite series.
    """
    return within_runs([step_seconds])[0]


def within_runs(many: Sequence[ArrayLike]) -> list[Interval]:
    """within_run() of each: those of one length are worked out at once, which ten thousand trials need."""
    series = [_finite(steps, "step_seconds") for steps in many]
    alike: dict[int, list[int]] = {}
    for place, x in enumerate(series):
        alike.setdefault(len(x), []).append(place)
    intervals: dict[int, Interval] = {}
    for places in alike.values():
        intervals |= zip(places, _within(np.stack([series[place] for place in places])), strict=True)
    return [intervals[place] for place in range(len(series))]


def freedom_within(n: int) -> int:
    """Degrees of freedom of the interval of one run's mean: how many cosine coefficients it rests on, of n >= 2 steps.

    0.6 sqrt(n) was chosen by simulation over AR(1) phi <= 0.9, ARMA(1,1) and gamma noise.
    """
    return min(n - 1, max(3, int(0.6 * math.sqrt(n))))


def _within(x: Rows) -> list[Interval]:
    """Intervals of each row of `x`, (runs, n) seconds."""
    from scipy.fft import dct
    from scipy.special import stdtr

    n, means = x.shape[1], x.mean(axis=1)
    if n < 2:
        return [Interval(float(mean), None, None, n, TOO_SHORT) for mean in means]
    coefficients = freedom_within(n)
    low_frequencies = dct(x - means[:, None], type=2, norm="ortho", axis=1)[:, 1 : coefficients + 1]
    phi = _lag_one(x)
    seen = _share_seen(phi, n, coefficients)
    variances = (low_frequencies**2).mean(axis=1) / np.minimum(1.0, seen)  # only widened: phi < 0 needs no help
    quantile = student_t(0.95, coefficients)
    halves = quantile * np.sqrt(variances / n)
    # Of nominal 95 % intervals whose variances are `seen` times the true ones.
    coverage = 1 - 2 * stdtr(coefficients, -quantile * np.sqrt(seen))
    short = (n < SHORTEST_SERIES) | (coverage < LEAST_COVERAGE)
    columns = (column.tolist() for column in (means, halves, short))
    return [
        Interval(mean, mean - half, mean + half, n, TOO_SHORT if is_short else "")
        for mean, half, is_short in zip(*columns, strict=True)
    ]


def throughput(step_seconds: Interval, samples_per_step: float) -> Interval:
    """Samples per second from an interval of step seconds and the samples of all workers in one step.

    An interval of seconds that reaches 0 bounds no throughput from above: then none is claimed.
    """
    s = step_seconds
    bounded = s.low is not None and s.high is not None and s.low > 0
    low, high = (samples_per_step / s.high, samples_per_step / s.low) if bounded else (None, None)  # type: ignore[operator]
    return Interval(samples_per_step / s.mean, low, high, s.n, s.verdict)


def between_repeats(values: ArrayLike, first: int | None = None) -> Interval:
    """95 % Student t interval of the mean over repeats; `values`: (n,), one mean of each repeat, in any unit.

    `first`: how many repeats were planned before any was seen. Where more were added because of their spread, the
    interval rests on the spread of the first ones alone (Stein, Ann. Math. Stat. 16, 1945): the later number was
    chosen by it, and using all would cover less than it says.
    With fewer than 3 repeats no interval is claimed. Raises ValueError for empty or non-finite values.
    """
    x = _finite(values, "values")
    n, mean = len(x), float(np.mean(x))
    if n < FEWEST_REPEATS:
        return Interval(mean, None, None, n, TOO_FEW)
    stage = first_stage(x, first)
    half = student_t(0.95, len(stage) - 1) * float(np.std(stage, ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def repeats_for(first: ArrayLike, target: float) -> int:
    """Repeats in all that bring between_repeats(..., first=len(first)) to +-`target` of the mean (0.02: 2 %).

    Stein's second stage, decided once from the first repeats, (n,) with n >= 2. At least n.
    """
    x = _finite(first, "first")
    half = student_t(0.95, len(x) - 1) * float(np.std(x, ddof=1))
    return max(len(x), math.ceil((half / (target * abs(float(np.mean(x))))) ** 2))


def ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    confidence: float = 0.95,
    first: tuple[int | None, int | None] = (None, None),
) -> Interval:
    """Interval of the ratio of two independent means over repeats: a speed-up, or the gain of fp16 over fp32.

    Both (n,), positive, same unit. `first`: repeats of each planned before any was seen, as in between_repeats.
    """
    return quotient([numerator], [denominator], confidence, first)


def quotient(
    numerators: Sequence[ArrayLike],
    denominators: Sequence[ArrayLike],
    confidence: float = 0.95,
    first: Sequence[int | None] | None = None,
    powers: Sequence[float] | None = None,
) -> Interval:
    """Interval of the product of some independent means over that of others, or of `powers` of them in the same order.

    Each (n,) and positive. Taken on the logarithm with the delta method, so that a/b and b/a tell the same story, with
    the degrees of freedom of Welch (Biometrika 34, 1947). `first`: as in ratio, one a mean. With fewer than 3 values of
    one of them no interval is claimed. `n`: the smallest count. Raises ValueError for empty or non-positive values.
    """
    above = [_finite(values, "numerator").tolist() for values in numerators]
    every = above + [_finite(values, "denominator").tolist() for values in denominators]
    if min(map(min, every)) <= 0:
        raise ValueError("a ratio needs positive values")
    averages, n = [sum(values) / len(values) for values in every], min(map(len, every))
    powers = powers or [1.0] * len(above) + [-1.0] * len(denominators)
    mean = math.prod(average**power for average, power in zip(averages, powers, strict=True))
    if n < FEWEST_REPEATS:
        return Interval(mean, None, None, n, TOO_FEW)
    stages = [first_stage(values, planned) for values, planned in zip(every, first or [None] * len(every), strict=True)]
    variances = []  # of each log mean; for a few numbers Python is faster than numpy
    for stage, values, average, power in zip(stages, every, averages, powers, strict=True):
        shares = [value / average for value in stage]  # or the square of a large one would be infinite
        centre = sum(shares) / len(shares)
        relative = sum((share - centre) ** 2 for share in shares) / (len(shares) - 1)
        variances.append(power**2 * relative / len(values))
    if sum(variances) == 0:
        return Interval(mean, mean, mean, n)
    freedom = welch_satterthwaite(variances, [float(len(stage) - 1) for stage in stages])
    factor = math.exp(student_t(confidence, freedom) * math.sqrt(sum(variances)))
    return Interval(mean, mean / factor, mean * factor, n)


def welch_satterthwaite(variances: Sequence[Numbers], freedoms: Sequence[Numbers]) -> Numbers:
    """Degrees of freedom of a sum of independent estimates of variance: numbers, or arrays of one shape.

    `freedoms`: those of each estimate; nan for an array's sums that are 0. Satterthwaite, Biometrics Bull. 2, 1946;
    Welch, Biometrika 34, 1947. Raises ZeroDivisionError for numbers that sum to 0.
    """
    total = sum(variances[1:], variances[0])
    parts = [variance**2 / freedom for variance, freedom in zip(variances, freedoms, strict=True)]
    return total**2 / sum(parts[1:], parts[0])


def repeats_needed(values: Sequence[float], target: float) -> int | None:
    """Repeats with the spread of these that bring the interval between repeats to +-`target` (0.02: 2 %).

    At least 3. None if undefined: fewer than 2 values, a mean of 0, or more than a million. At 5 % noise, +-2 % needs
    27.
    """
    x = _finite(values, "values")
    mean = float(np.mean(x))
    if len(x) < 2 or mean == 0:
        return None
    spread = float(np.std(x, ddof=1)) / abs(mean)

    def reached(n: int) -> bool:
        return student_t(0.95, n - 1) * spread / math.sqrt(n) <= target

    needed = FEWEST_REPEATS + bisect_left(range(FEWEST_REPEATS, MOST_REPEATS + 1), True, key=reached)
    return needed if needed <= MOST_REPEATS else None


def first_stage(values: Values, first: int | None) -> Values:
    """The repeats whose spread may be believed: those that were planned, where more were added because of it."""
    return values[:first] if first and FEWEST_REPEATS <= first < len(values) else values


def _finite(values: ArrayLike, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ValueError(f"{name} must be one or more finite numbers in a row")
    return x


def student_t(confidence: float, freedom: float) -> float:
    """Two-sided Student t quantile. From scipy.special: scipy.stats takes half a second to import."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2))


def _lag_one(x: Rows) -> Row:
    """Lag-one autocorrelation of each row without its bias, E[r] = phi - (1 + 3 phi)/n (Kendall, Biometrika 41,
    1954)."""
    n, means = x.shape[1], x.mean(axis=1)
    centred = x - means[:, None]
    power = (centred**2).sum(axis=1)
    equal = power <= 1e-24 * n * means**2  # all steps, to within rounding
    r = (centred[:, 1:] * centred[:, :-1]).sum(axis=1) / np.where(equal, 1.0, power)
    unbiased = (n * r + 1) / (n - 3) if n > 3 else r
    return np.where(equal, 0.0, np.clip(unbiased, -PHI_LIMIT, PHI_LIMIT))


def _share_seen(phi: Row, n: int, coefficients: int) -> Row:
    """The long-run variance that the estimator sees of AR(1) series with these phi, as a share of the true one.

    It averages the spectrum over its frequencies pi j / n, j = 1..B, but the variance of the mean is the spectrum
    at 0: what it misses is the whole of its bias, and is put back as in prewhitening (Andrews and Monahan 1992).
    """
    cosines = np.cos(math.pi * np.arange(1, coefficients + 1) / n)
    each = (1 - phi[:, None]) ** 2 / (1 + phi[:, None] ** 2 - 2 * phi[:, None] * cosines)
    return np.asarray(each.mean(axis=1), dtype=np.float64)
