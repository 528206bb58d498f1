"""Estimates that are products, ratios or partly unknown, and the interval width that a study asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from analysis.frames import configurations
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow
from scaling_study.stats.intervals import welch_satterthwaite


@dataclass(frozen=True)
class LogEstimate:
    """A positive quantity that is known only so well. `below`, `above`: standard errors of `log` on either side, which
    differ where values are censored; infinite: that side is open, nan: nothing is known.

    Errors of independent ones add up in squares, side by side (MOVER: Zou and Donner, Stat. Med. 27, 2008), with the
    degrees of freedom of Welch and Satterthwaite.
    """

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
    if all(math.isinf(freedom) for _, freedom in unsure):
        return math.inf
    return float(welch_satterthwaite([v for v, _ in unsure], [f for _, f in unsure]))


FEWEST = 2  # known values, below which no interval is claimed
ROUNDING = 4 * float(np.finfo(float).eps)  # relative: as near as brentq gets
FIRST_REACH, WIDEST = 0.05, 50.0  # of a logarithm's interval, beyond which a side is open


@dataclass(frozen=True)
class CensoredMean:
    """Geometric mean and 95 % interval; None where they cannot be told."""

    known: int
    censored: int
    mean: float | None
    low: float | None
    high: float | None


def censored_mean(
    known: Sequence[float],
    larger: Sequence[float],
    smaller: Sequence[float] = (),
    *,
    confidence: float = 0.95,
    least_spread: float = 0.0,
) -> CensoredMean:
    """The geometric mean of known values and of values only known to be larger or smaller. All are above 0.

        reached after   12 s   15 s          stopped at   40 s          ->   20 s, 95 % interval 9 to 45 s

    Values are log-normal. Where all are known the interval is Student's t on their logarithms. Of a censored one only
    its probability of being larger counts (Tobin, Econometrica 1958); the interval is that of the profile likelihood,
    with Student's t in place of the normal quantile for so few values.

    `least_spread`: standard deviation of a logarithm that is certain, such as that of rounding.
    """
    logs, above, below = (np.log(np.asarray(values, dtype=float)) for values in (known, larger, smaller))
    counts = len(logs), len(above) + len(below)
    if len(logs) < FEWEST:
        least = math.exp(min(logs)) if len(logs) and not counts[1] else None
        return CensoredMean(*counts, least, None, None)
    quantile = float(stats.t.ppf(0.5 + confidence / 2, sum(counts) - 1))
    if not counts[1]:
        error = max(float(stats.sem(logs)), least_spread / math.sqrt(len(logs)))
        mean, half = float(logs.mean()), error * quantile
        return CensoredMean(*counts, math.exp(mean), math.exp(mean - half), math.exp(mean + half))
    start, narrowest = float(np.concatenate([logs, above, below]).mean()), max(-6.0, math.log(least_spread or 1e-9))

    def cost(mean: float, log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        censored = stats.norm.logsf(above, mean, sigma).sum() + stats.norm.logcdf(below, mean, sigma).sum()
        return -float(stats.norm.logpdf(logs, mean, sigma).sum() + censored)

    def profile(mean: float) -> float:
        return float(optimize.minimize_scalar(lambda s: cost(mean, s), bounds=(narrowest, 4.0), method="bounded").fun)

    best = optimize.minimize_scalar(profile, bounds=(start - 10, start + 10), method="bounded")
    threshold = float(best.fun) + 0.5 * quantile**2
    low, high = (
        crossing(lambda at: threshold - profile(at), float(best.x), side * FIRST_REACH, WIDEST) for side in (-1, 1)
    )
    return CensoredMean(*counts, math.exp(best.x), low and math.exp(low), high and math.exp(high))


def crossing(
    of: Callable[[float], float], inside: float, reach: float, farthest: float, precision: float = ROUNDING
) -> float | None:
    """Where `of`, above 0 at `inside`, falls to 0; looked for first as far from there as `reach`, whose sign is the
    direction, at last as far as `farthest`. None where it is above 0 up to there. `precision` is relative."""
    while of(inside + reach) > 0:
        reach *= 2
        if abs(reach) > farthest:
            return None
    return float(optimize.brentq(of, inside, inside + reach, rtol=precision))


class Width(NamedTuple):
    """The interval of one measured configuration: in rounds of its ratio to the baseline, else of its throughput.
    `half` is relative, nan where no interval is claimed. `repeats_needed` would bring it to `target_interval`."""

    row: ConfigurationRow
    half: float
    of_ratio: bool
    repeats_needed: int | None


@once
def widths(results: Results) -> list[Width]:
    """The widths of all measured configurations, in their order, without baselines that others are held against."""
    by_id, target = {row["configuration"]: row for row in results.rows}, results.study.target_interval
    ratios: dict[str, Width] = {}
    for row in results.rows:
        base = by_id.get(row["baseline"] or "", row)
        if base is not row and not math.isnan(row["speedup"]) and (ratio := configurations.launches_ratio(row, base)):
            half, needed = ratio.relative_half_width, configurations.needed(row, base, target)
            ratios[row["configuration"]] = Width(row, math.nan if half is None else half, True, needed)
    bases = {width.row["baseline"] for width in ratios.values()}
    return [
        ratios.get(name) or Width(row, row["relative_half_width"], False, row["repeats_needed"])
        for name, row in by_id.items()
        if row["n"] and name not in bases
    ]


def said_of(widths: list[Width]) -> str:
    """Words that follow `intervals`: ` of ratios to the baseline`; empty for throughputs."""
    of_ratio = [width.of_ratio for width in widths]
    if not any(of_ratio):
        return ""
    return " of ratios to the baseline" + ("" if all(of_ratio) else " (of throughputs where there is none)")
