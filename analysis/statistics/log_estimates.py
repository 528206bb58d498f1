"""Products and ratios of positive quantities, each known only so well: speed x efficiency, predicted / measured.

Each is a logarithm with a standard error down and one up, which differ where some values are censored or an interval
was read off a curve. Independent ones add up in squares, side by side (MOVER: Zou and Donner, Stat. Med. 27, 2008),
with the degrees of freedom of Welch and Satterthwaite. Where all are symmetric that is Welch's interval of log means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.statistics.censored import CensoredMean
from scaling_study.stats.intervals import welch_satterthwaite


@dataclass(frozen=True)
class LogEstimate:
    """`below`, `above`: standard errors of `log` on either side; infinite: that side is open, nan: nothing is known."""

    log: float
    below: float = 0.0
    above: float = 0.0
    freedom: float = math.inf

    @property
    def value(self) -> float:
        return math.exp(self.log)

    def bounds(self, confidence: float = 0.95) -> tuple[float | None, float | None]:
        """None where a side is open or unknown."""
        quantile = float(stats.t.ppf(0.5 + confidence / 2, self.freedom))
        low, high = self.log - quantile * self.below, self.log + quantile * self.above
        return (math.exp(low) if math.isfinite(low) else None), (math.exp(high) if math.isfinite(high) else None)

    def __mul__(self, other: LogEstimate) -> LogEstimate:
        below, above = math.hypot(self.below, other.below), math.hypot(self.above, other.above)
        return LogEstimate(self.log + other.log, below, above, _freedom(self, other))

    def __pow__(self, power: float) -> LogEstimate:
        below, above = (self.below, self.above) if power >= 0 else (self.above, self.below)
        return LogEstimate(power * self.log, abs(power) * below, abs(power) * above, self.freedom)

    def __truediv__(self, other: LogEstimate) -> LogEstimate:
        return self * other**-1


def exactly(value: float) -> LogEstimate:
    return LogEstimate(math.log(value))


def of_censored(mean: CensoredMean) -> LogEstimate | None:
    """None where no mean is claimed; of one without an interval, the errors are unknown."""
    if mean.mean is None:
        return None
    freedom = mean.known + mean.censored - 1
    if freedom < 1:
        return LogEstimate(math.log(mean.mean), math.nan, math.nan)
    return between(mean.mean, mean.low, mean.high, freedom)


def between(value: float, low: float | None, high: float | None, freedom: float) -> LogEstimate:
    """From a 95 % interval with these degrees of freedom; a bound that is None, or a lower one of 0, is open."""
    quantile = float(stats.t.ppf(0.975, freedom))
    below = (math.log(value) - math.log(low)) / quantile if low else math.inf
    above = (math.log(high) - math.log(value)) / quantile if high is not None else math.inf
    return LogEstimate(math.log(value), max(0.0, below), max(0.0, above), freedom)


def of_values(values: Sequence[float]) -> LogEstimate:
    """The geometric mean of values above 0, with Student's t on their logarithms; of one the errors are unknown."""
    logs = np.log(np.asarray(values, dtype=float))
    error = float(stats.sem(logs)) if len(logs) > 1 else math.nan
    return LogEstimate(float(logs.mean()), error, error, max(1.0, len(logs) - 1.0))


def _freedom(*parts: LogEstimate) -> float:
    def variance(part: LogEstimate) -> float:
        sides = [side**2 for side in (part.below, part.above) if math.isfinite(side)]
        return sum(sides) / len(sides) if sides else 0.0

    unsure = [(variance(part), part.freedom) for part in parts if variance(part) > 0]
    if not unsure:
        return math.inf
    if all(math.isinf(freedom) for _, freedom in unsure):
        return math.inf
    return float(welch_satterthwaite([v for v, _ in unsure], [f for _, f in unsure]))
