"""The mean of something positive of which some values are only known to be larger: seconds to a target never reached.

    reached after   12 s   15 s          stopped at   40 s          ->   geometric mean 20 s, 95 % interval 9 to 45 s

Values are taken as log-normal. Where all are known that is Student's t on their logarithms. Of a censored one only its
probability of being larger counts (Tobin, Econometrica 1958), and the interval is that of the profile likelihood, with
Student's t in place of the normal quantile for so few values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

FEWEST = 2  # known values, below which nothing but a lower bound is claimed
WIDEST = 50.0  # of a logarithm's interval, beyond which a side is open


@dataclass(frozen=True)
class CensoredMean:
    """Geometric mean and 95 % interval; None where they cannot be told."""

    known: int
    censored: int
    mean: float | None
    low: float | None
    high: float | None


def censored_mean(known: Sequence[float], censored: Sequence[float]) -> CensoredMean:
    """Of values that are known, and of those known to be larger than these. All are above 0."""
    logs, bounds = np.log(np.asarray(known, dtype=float)), np.log(np.asarray(censored, dtype=float))
    counts = len(logs), len(bounds)
    if len(logs) < FEWEST:
        least = math.exp(min(logs)) if len(logs) and not len(bounds) else None
        return CensoredMean(*counts, least, None, None)
    if not len(bounds):
        mean, half = float(logs.mean()), float(stats.sem(logs) * stats.t.ppf(0.975, len(logs) - 1))
        return CensoredMean(*counts, math.exp(mean), math.exp(mean - half), math.exp(mean + half))
    start = float(np.concatenate([logs, bounds]).mean())

    def cost(mean: float, log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        return -float(stats.norm.logpdf(logs, mean, sigma).sum() + stats.norm.logsf(bounds, mean, sigma).sum())

    def profile(mean: float) -> float:
        return float(optimize.minimize_scalar(lambda s: cost(mean, s), bounds=(-6.0, 4.0), method="bounded").fun)

    best = optimize.minimize_scalar(profile, bounds=(start - 5, start + 10), method="bounded")
    threshold = float(best.fun) + 0.5 * float(stats.t.ppf(0.975, sum(counts) - 1)) ** 2
    low, high = (_crossing(profile, float(best.x), threshold, side) for side in (-1, 1))
    return CensoredMean(*counts, math.exp(best.x), low and math.exp(low), high and math.exp(high))


def _crossing(profile: object, best: float, threshold: float, side: int) -> float | None:
    """Where the profile rises above the threshold on one side of its minimum; None where it never does."""
    reach = 0.05
    while profile(best + side * reach) < threshold:  # type: ignore[operator]
        reach *= 2
        if reach > WIDEST:
            return None
    return float(optimize.brentq(lambda at: profile(at) - threshold, best, best + side * reach))  # type: ignore[operator]
