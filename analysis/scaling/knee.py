"""The knee: beyond which worker count another worker returns less than a set share of what one alone does.

    return of the (n+1)-th worker = (throughput(n+1) - throughput(n)) / throughput(1)

By the fitted laws, count by count, with an interval over their draws and over all laws that are not told apart; looked
for up to FARTHEST times the largest count measured, and no further than MOST. Between counts that were measured the
return of each further worker is measured too, and needs no law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.scaling.extrapolate import Extrapolation
from analysis.scaling.families import Family
from scaling_study.stats.intervals import FEWEST_REPEATS, welch_satterthwaite

SHARE = 0.5
FARTHEST = 16  # times the largest count measured
MOST = 1 << 14  # workers: every count up to there is looked at, on every draw
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Knee:
    """The last worker count whose last worker returns at least `share`. Of a bound that lies beyond `looked`, nothing
    but that is known; `low` and `high` are None where counts had no repeats."""

    workers: int
    low: int | None
    high: int | None
    share: float
    looked: int

    @property
    def text(self) -> str:
        """`12 workers [10, 16]`; `more than 128 workers`."""
        bounds = "" if self.low is None else f" [{self._said(self.low)}, {self._said(self.high)}]"
        count = f"{self.workers} worker{'s' * (self.workers != 1)}"
        return (f"more than {self.looked} workers" if self.workers >= self.looked else count) + bounds

    def _said(self, count: int | None) -> str:
        return "?" if count is None else f"beyond {self.looked}" if count >= self.looked else str(count)


@dataclass(frozen=True)
class Returned:
    """What each worker between two measured counts returned, as a share of one alone."""

    before: int
    after: int
    share: float
    low: float | None
    high: float | None


def knee(extrapolation: Extrapolation, share: float = SHARE) -> Knee:
    """Of one family, by its laws. Raises ValueError for a share that is not between 0 and 1."""
    if not 0 < share < 1:
        raise ValueError(f"share must lie between 0 and 1, not {share}")
    largest = int(extrapolation.compared.family.workers.max())
    looked = max(largest, min(FARTHEST * largest, MOST))
    counts = np.arange(1.0, looked + 1)
    best = _last(counts / extrapolation.compared.best.curve(counts), share)[0]
    drawn = [_last(law.rates(counts, off=False), share) for law in extrapolation.drawn]
    if not drawn:
        return Knee(int(best), None, None, share, looked)
    bounds = [np.percentile(draw, (2.5, 97.5), method="inverted_cdf") for draw in drawn]
    low, high = min(bound[0] for bound in bounds), max(bound[1] for bound in bounds)
    return Knee(int(best), int(min(low, best)), int(max(high, best)), share, looked)


def _last(rates: Vector, share: float) -> Vector:
    """(draws,) the last count before returns fall below `share`; rates: (draws, counts 1, 2, ...)."""
    returned = np.diff(rates, axis=1) / rates[:, :1]
    below = returned < share
    return np.asarray(np.where(below.any(axis=1), below.argmax(axis=1) + 1, rates.shape[1]), dtype=np.float64)


def returns(family: Family) -> list[Returned]:
    """Between each two neighbouring counts that were measured; none without a run with one worker.

    95 % by the delta method on the means of three counts (two, where the first is one worker), Welch's degrees of
    freedom; no interval with fewer than 3 repeats of one of them.
    """
    workers, repeats = [int(count) for count in family.workers], family.repeats
    return [_returned(workers, repeats, at) for at in range(1, len(workers))] if workers[0] == 1 else []


def _returned(workers: Sequence[int], repeats: Sequence[Vector], at: int) -> Returned:
    means = [float(repeat.mean()) for repeat in repeats]
    step = workers[at] - workers[at - 1]
    share = (means[at] - means[at - 1]) / step / means[0]
    slopes = {0: -share / means[0]}
    for place, sign in ((at, 1.0), (at - 1, -1.0)):
        slopes[place] = slopes.get(place, 0.0) + sign / step / means[0]
    before, after = workers[at - 1], workers[at]
    if min(len(repeats[place]) for place in slopes) < FEWEST_REPEATS:
        return Returned(before, after, share, None, None)
    from scipy.special import stdtrit

    variances = {
        place: slope**2 * float(np.var(repeats[place], ddof=1)) / len(repeats[place]) for place, slope in slopes.items()
    }
    total = sum(variances.values())
    if total == 0:
        return Returned(before, after, share, share, share)
    freedom = welch_satterthwaite(list(variances.values()), [len(repeats[place]) - 1.0 for place in variances])
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(total)
    return Returned(before, after, share, share - half, share + half)
