"""The mean of something positive of which some values are only known to be larger: seconds to a target never reached.

    reached after   12 s   15 s          stopped at   40 s          ->   geometric mean 20 s, 95 % interval 9 to 45 s

Values are taken as log-normal. Where all are known that is Student's t on their logarithms. Of a censored one only its
probability of being larger counts (Tobin, Econometrica 1958), and the interval is that of the profile likelihood, with
Student's t in place of the normal quantile for so few values. A ratio may also be known only to be smaller: where what
stands below the line was stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

FEWEST = 2  # known values, below which no interval is claimed
WIDEST = 50.0  # of a logarithm's interval, beyond which a side is open


@dataclass(frozen=True)
class CensoredMean:
    """Geometric mean and 95 % interval; None where they cannot be told."""

    known: int
    censored: int
    mean: float | None
    low: float | None
    high: float | None


def censored_mean(
    known: Sequence[float], larger: Sequence[float], smaller: Sequence[float] = (), *,
    confidence: float = 0.95, least_spread: float = 0.0,
) -> CensoredMean:  # fmt: skip
    """Of values that are known, and of those known to be larger or smaller than these. All are above 0.

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
