"""Two things measured in turn, what can be said of their ratio, and whether a bar is met.

    A B | B A | A B | B A ...      each pair is taken close together, its order swapped every time

A machine that drifts falls on both sides of a pair alike, and what drifts steadily cancels over two pairs (ABBA).
Intervals are Student t over the pairs, of the difference or of the log-ratio, so that A/B and B/A tell the same
story. Pairs are taken as independent: noise that lasts longer than a pair is the same for both of its halves.

What this cannot show: that another machine, or this one on another day, gives the same figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from scaling_study.stats.intervals import TOO_FEW, Interval, between_repeats

FEWEST_PAIRS = 10
MET, MISSED, NOT_RESOLVED, NO_CLAIM = "met", "missed", "not resolved", "quick form: no claim"
NO_BAR = "no bar"

Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Bar:
    """Where the whole interval must lie."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Finding:
    """One claim and what was measured of it. `evidence`: the raw numbers and what they were taken with."""

    claim: str
    figure: Interval
    bar: Bar | None = None
    unit: str = ""  # of the figure; empty: a ratio
    verdict: str = ""  # set only where nothing could be measured, or nothing may be claimed
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def judged(self, quick: bool) -> str:
        """The verdict in words."""
        if self.verdict:
            return self.verdict
        return NO_CLAIM if quick else verdict(self.figure, self.bar)


def verdict(figure: Interval, bar: Bar | None, fewest: int = FEWEST_PAIRS) -> str:
    """Met only when the whole interval lies inside the bar, missed only when all of it lies outside."""
    if bar is None:
        return NO_BAR
    if figure.low is None or figure.high is None or figure.n < fewest:
        return NOT_RESOLVED
    if bar.low <= figure.low and figure.high <= bar.high:
        return MET
    return MISSED if figure.high < bar.low or figure.low > bar.high else NOT_RESOLVED


def alternate(a: Callable[[], float], b: Callable[[], float], pairs: int) -> list[tuple[float, float]]:
    """Call a and b in the order A B, B A, A B, ...; one (a, b) a pair."""
    taken = []
    for index in range(pairs):
        if index % 2:
            second = b()
            taken.append((a(), second))
        else:
            taken.append((a(), b()))
    return taken


def ratio(pairs: Pairs) -> Interval:
    """a / b with its 95 % interval, on the logarithm: the geometric mean of the pairs' ratios."""
    logs = between_repeats([math.log(a / b) for a, b in pairs])
    low, high = (None if side is None else math.exp(side) for side in (logs.low, logs.high))
    return Interval(math.exp(logs.mean), low, high, logs.n, logs.verdict)


def of_launches(launches: Sequence[Pairs]) -> list[tuple[float, float]]:
    """Each launch's pairs as one, of their geometric means.

    Which memory its processes were given is a launch's own, and stays: the pairs of one launch agree better with each
    other than with another's. So intervals are over launches, of which each brings one pair.
    """
    return [(_mean_of(pairs, 0), _mean_of(pairs, 1)) for pairs in launches]


def _mean_of(pairs: Pairs, side: int) -> float:
    return math.exp(mean(math.log(pair[side]) for pair in pairs))


def difference(pairs: Pairs, plus: float = 0.0) -> Interval:
    """a - b + `plus` with its 95 % interval, in the pairs' unit."""
    return between_repeats([a - b + plus for a, b in pairs])


def median_deviation(ratios: Mapping[str, Pairs]) -> Interval:
    """Median over configurations of |a/b - 1|, with its interval of at least 95 % for any distribution.

    `ratios`: configuration -> its repeats as (a, b); its ratio is that of the mean a to the mean b. The bounds are
    the k-th smallest and k-th largest, k as large as the binomial distribution allows; none for fewer than 6.
    """
    found = sorted(abs(sum(a for a, _ in pairs) / sum(b for _, b in pairs) - 1) for pairs in ratios.values())
    n = len(found)
    below = [sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(1, n + 1)]
    k = sum(chance <= 0.025 for chance in below)
    low, high = (found[k - 1], found[n - k]) if k else (None, None)
    return Interval(median(found), low, high, n, "" if k else TOO_FEW)
