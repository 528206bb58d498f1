"""The slowest of n workers: in every step all wait for it.

Steps of one worker vary about their mean, with the standard deviation that its timed steps show. Workers are taken as
independent and alike, and their step times as normal: then the slowest of n is expected E[max] standard deviations
above the mean, 0.56 for n = 2, 1.54 for 10, 3.24 for 1,000, 4.4 for 100,000 (order statistics: David and Nagaraja,
Order Statistics, 3rd ed., 2003). Hiccups rarer and longer than a normal tail, and workers that are slow for good, cost
more than this says.
"""

from __future__ import annotations

from functools import cache

import numpy as np

POINTS = 20_000  # of the midpoint rule; the largest error, at n = 100,000, is below 0.001


@cache
def expected_maximum(workers: int) -> float:
    """Mean of the largest of `workers` standard normal variables.

    With F(x)**n uniform on (0, 1): the mean over u of the normal quantile of u**(1/n). Raises ValueError for none.
    """
    if workers < 1:
        raise ValueError(f"of {workers} workers none is the slowest")
    from scipy.special import ndtri

    u = (np.arange(POINTS) + 0.5) / POINTS
    return float(np.mean(-ndtri(-np.expm1(np.log(u) / workers)))) if workers > 1 else 0.0


def slowdown(workers: int, variation: float) -> float:
    """How many times the mean step the slowest worker's is expected to take; `variation`: deviation / mean."""
    return 1.0 + max(0.0, variation) * expected_maximum(workers)
