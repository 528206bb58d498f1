"""The gradient noise scale, from norms of gradients at two batch sizes (McCandlish et al., arXiv 1812.06162, A.1).

The mean of |g|^2 over batches of b samples is |G|^2 + S / b: of the true gradient, and of the noise of one sample. From
a small batch b and a big one B, both at the same step,

    |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b)        S = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)        scale = S / |G|^2

Each is unbiased, their ratio is not, and a single |G|^2 can be negative: both are averaged over steps before they are
divided. The interval of the ratio is Fieller's (J. R. Stat. Soc. B 16, 1954): it holds each scale r for which the mean
of S - r |G|^2 may be 0. Between runs, where there are at least three, that is Student's t over the runs' means, which
are independent; else within the run, whose steps are not (scaling_study/stats/intervals.py). It has no upper end where
|G|^2 may be 0, and no best value where its mean is not above 0. A scale that grows while a model trains is averaged
over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_study.stats.intervals import FEWEST_REPEATS, Interval, between_repeats, freedom_within, within_run

FEWEST_ROWS = 8  # steps of all runs, below which nothing is claimed
LARGEST = 1e12  # samples; no scale is looked for beyond
CONTRADICTORY = "larger batches have larger gradients"
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Norms:
    """Of one run: |g|^2 at `small_batch`, the mean over ranks, and at `big_batch`, both (steps,), in order."""

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
    gradient_sqr: float  # |G|^2
    variance: float  # S
    runs: int
    rows: int
    verdict: str = ""


def noise_scale(runs: Sequence[Norms]) -> NoiseScale:
    """Of runs of one configuration, one a seed. Raises ValueError for norms that are no finite numbers."""
    parts = [run.parts() for run in runs if np.size(run.small_sqr)]
    count, rows = len(parts), sum(len(sqr) for sqr, _ in parts)
    if rows < FEWEST_ROWS:
        return NoiseScale(None, None, None, 0, math.nan, math.nan, count, rows, f"{rows} of {FEWEST_ROWS} steps")
    interval: Callable[[ArrayLike], Interval]
    if count >= FEWEST_REPEATS:
        sqr, variance = (np.array([part[i].mean() for part in parts]) for i in (0, 1))
        interval, freedom = between_repeats, float(count - 1)
    else:  # one after another: what two runs differ by is slow variation
        sqr, variance = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        interval, freedom = within_run, float(freedom_within(rows))
    scale, low, high, verdict = _fieller(variance, sqr, interval)
    return NoiseScale(scale, low, high, freedom, float(sqr.mean()), float(variance.mean()), count, rows, verdict)


def _fieller(
    above: Values, under: Values, interval: Callable[[ArrayLike], Interval]
) -> tuple[float | None, float | None, float | None, str]:
    """(ratio of the means, its lower and upper bound, why not). Of a ratio that cannot be negative."""

    def beyond(ratio: float, side: int) -> float:
        """Above 0 where the mean of above - ratio x under is surely above 0 (side 1), or surely below (side -1)."""
        of = interval(above - ratio * under)
        assert of.low is not None and of.high is not None
        return of.low if side == 1 else -of.high

    least = interval(under)
    assert least.low is not None and least.high is not None
    if beyond(0.0, -1) > 0 or (least.high < 0 and least.mean < 0):
        return None, None, None, CONTRADICTORY
    scale = float(above.mean() / under.mean()) if above.mean() > 0 and under.mean() > 0 else None
    start = scale or 1.0
    low = 0.0 if beyond(0.0, 1) <= 0 else _crossing(lambda ratio: beyond(ratio, 1), 0.0, start)
    high = _crossing(lambda ratio: -beyond(ratio, -1), scale or 0.0, start) if least.low > 0 else None
    return scale, low, high, ""


def _crossing(of: Callable[[float], float], inside: float, reach: float) -> float | None:
    """Where `of`, above 0 at `inside`, falls to 0 as its argument grows; None where it never does."""
    from scipy.optimize import brentq

    while of(inside + reach) > 0:
        reach *= 2
        if reach > LARGEST:
            return None
    return float(brentq(of, inside, inside + reach, rtol=1e-6))


def predicted_efficiency(scale: float, batch: float, smallest: float) -> float:
    """Samples needed at the smallest batch over those at `batch`, by a noise scale (McCandlish et al., eq. 2.11)."""
    return (smallest + scale) / (batch + scale) if math.isfinite(scale) else 1.0


def pollux_efficiency(gradient_sqr: float, variance: float, growth: float) -> float:
    """The same from |G|^2 and the variance of a gradient at the smallest batch, for one `growth` times as large.

    Qiao et al., "Pollux", OSDI 2021, section 3.1, as AdaptDL computes it: what a step gains, over what it costs. Equal
    to predicted_efficiency with scale = smallest batch x variance / |G|^2.
    """
    gain = (variance + gradient_sqr) / (variance / growth + gradient_sqr)
    return gain / growth
