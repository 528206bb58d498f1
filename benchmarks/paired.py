"""Things measured in turn, what can be said of their ratio, and whether a bar is met.

    A B A' | A' B A | A B A' ...      each turn is taken close together, its order reversed every time

A machine that drifts falls on both sides of a pair alike, and what drifts steadily cancels over two turns (ABBA).
Intervals are Student t over the pairs, of the difference or of the log-ratio, so that A/B and B/A tell the same
story. Where the sides are built in launches, one launch is one pair (`of_launches`): which memory its processes were
given stays for all of its turns, and 40 turns of one launch once put a step at 0.971 (0.945 to 0.997) of itself.

What a process builds first may be slower for good: in 3 of 8 processes the first of three equal steps of resnet8 took 1
to 4 % more processor time than both others, which agreed to 0.6 % (tried once, by hand, on a busy machine). So what is
built first is not timed.

A' is A once more, measured by the same method: the **control**, which shows what the method calls equal. A bar is met
only beside a control that holds equality.

What this cannot show: that another machine, or this one on another day, gives the same figure.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean, median
from typing import Any

from scaling_study.stats.intervals import FEWEST_REPEATS, TOO_FEW, Interval, between_repeats, student_t

FEWEST_PAIRS = 10
MET, MISSED, NOT_RESOLVED, NO_CLAIM = "met", "missed", "not resolved", "quick form: no claim"
NO_BAR = "no bar"
NOT_RUN = "not run: "  # how the verdict begins of what could not be measured
INSIDE_WITHOUT = "inside the bar, but no control"
CONTROL_FAILS = "no verdict: the control says that a thing is unlike itself"

Pairs = Sequence[tuple[float, float]]
Turns = Sequence[Sequence[float]]  # values of each side, ours first; the last is ours again where there are three


@dataclass(frozen=True)
class Bar:
    """Where the whole interval must lie."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Control:
    """A thing against itself, by the method of its claim. `equal`: 1 of a ratio, 0 of a difference."""

    figure: Interval
    equal: float = 1.0

    @property
    def holds(self) -> bool | None:
        """None where it has no interval, and says nothing."""
        if self.figure.low is None or self.figure.high is None:
            return None
        return self.figure.low <= self.equal <= self.figure.high


class NotCompared:
    """The control of a number that was counted, or of one duration: there are no two sides that could differ."""


NOT_COMPARED = NotCompared()


@dataclass(frozen=True)
class Finding:
    """One claim and what was measured of it. `evidence`: the raw numbers and what they were taken with."""

    claim: str
    figure: Interval
    bar: Bar | None = None
    unit: str = ""  # of the figure; empty: a ratio
    verdict: str = ""  # set only where nothing could be measured or may be claimed, and where no interval decides
    evidence: Mapping[str, Any] = field(default_factory=dict)
    control: Control | NotCompared | None = None  # None: there is none

    def judged(self, quick: bool) -> str:
        """The verdict in words; none but "not resolved" where the control fails, and none is met without a control."""
        if quick and not self.verdict.startswith(NOT_RUN):
            return NO_CLAIM
        found = self.verdict or verdict(self.figure, self.bar)
        holds = self.control.holds if isinstance(self.control, Control) else None
        if holds is False and found in (MET, MISSED):
            return CONTROL_FAILS
        if found == MET and holds is None and not isinstance(self.control, NotCompared):
            return INSIDE_WITHOUT
        return found


def verdict(figure: Interval, bar: Bar | None, fewest: int = FEWEST_PAIRS) -> str:
    """Met only when the whole interval lies inside the bar, missed only when all of it lies outside."""
    if bar is None:
        return NO_BAR
    if figure.low is None or figure.high is None or figure.n < fewest:
        return NOT_RESOLVED
    if bar.low <= figure.low and figure.high <= bar.high:
        return MET
    return MISSED if figure.high < bar.low or figure.low > bar.high else NOT_RESOLVED


def within(value: float, bar: Bar) -> str:
    """The same of a number without an interval."""
    return MET if bar.low <= value <= bar.high else MISSED


def exact(claim: str, value: float, bar: Bar, unit: str = "", n: int = 1, **evidence: Any) -> Finding:
    """A number that was counted, of `n` things, or that is the same each time. Of nothing, nothing is said."""
    judged = within(value, bar) if n else NOT_RESOLVED
    return Finding(claim, Interval(value, None, None, n), bar, unit, judged, evidence, NOT_COMPARED)


def not_run(claim: str, why: Exception | str) -> Finding:
    """In place of what cannot be measured here; it is said at once, with the details of an Unavailable."""
    print(f"{claim}: {why}\n{getattr(why, 'detail', '')}", file=sys.stderr)
    return Finding(claim, Interval(math.nan, None, None, 0), verdict=f"{NOT_RUN}{why}")


def alternate(*sides: Callable[[], float], turns: int) -> list[tuple[float, ...]]:
    """Call the sides in the order A B C, C B A, A B C, ...; one (a, b, c) a turn."""
    taken = []
    for index in range(turns):
        backwards = sides[::-1] if index % 2 else sides
        values = [side() for side in backwards]
        taken.append(tuple(values[::-1] if index % 2 else values))
    return taken


def ratio(pairs: Pairs, held_at_once: int = 1) -> Interval:
    """a / b with its 95 % interval, on the logarithm: the geometric mean of the pairs' ratios.

    `held_at_once`: so many such intervals hold the truth together in 95 % of cases (Bonferroni).
    """
    logs = between_repeats([math.log(a / b) for a, b in pairs])
    if logs.low is None or logs.high is None:
        return Interval(math.exp(logs.mean), None, None, logs.n, logs.verdict)
    wider = student_t(1 - 0.05 / held_at_once, logs.n - 1) / student_t(0.95, logs.n - 1)
    half = wider * (logs.high - logs.mean)
    return Interval(math.exp(logs.mean), math.exp(logs.mean - half), math.exp(logs.mean + half), logs.n)


def of_launches(launches: Sequence[Turns], sides: tuple[int, int] = (0, 1)) -> list[tuple[float, float]]:
    """Each launch's turns as one pair, of the geometric means of two sides."""
    a, b = sides
    return [(geometric_mean(t[a] for t in turns), geometric_mean(t[b] for t in turns)) for turns in launches]


def over_launches(launches: Sequence[Turns], control: tuple[int, int] = (0, 2)) -> tuple[Interval, Control]:
    """Ours over theirs, and the control, of launches whose turns are (ours, theirs, one of the two again)."""
    return ratio(of_launches(launches)), Control(ratio(of_launches(launches, control)))


def compared(
    claim: str, launches: Sequence[Turns], evidence: Mapping[str, Any], bar: Bar | None = None,
    control: tuple[int, int] = (0, 2),
) -> Finding:  # fmt: skip
    """A claim of what over_launches finds."""
    figure, itself = over_launches(launches, control)
    return Finding(claim, figure, bar, evidence=evidence, control=itself)


def pairs_of(turns: Turns, sides: tuple[int, int] = (0, 1)) -> list[tuple[float, float]]:
    """Two sides of turns that are independent of each other."""
    a, b = sides
    return [(turn[a], turn[b]) for turn in turns]


def difference(pairs: Pairs, plus: float = 0.0) -> Interval:
    """a - b + `plus` with its 95 % interval, in the pairs' unit."""
    return between_repeats([a - b + plus for a, b in pairs])


def median_deviation(ratios: Mapping[str, Pairs]) -> Interval:
    """Median over configurations of |a/b - 1|, of the means of their repeats (a, b)."""
    return median_error([sum(a for a, _ in pairs) / sum(b for _, b in pairs) - 1 for pairs in ratios.values()])


def median_error(errors: Sequence[float]) -> Interval:
    """Median size of relative errors, with its interval of at least 95 % for any distribution.

    The bounds are the k-th smallest and k-th largest, k as large as the binomial distribution allows; none for fewer
    than 6.
    """
    found = sorted(map(abs, errors))
    n = len(found)
    below = [sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(1, n + 1)]
    k = sum(chance <= 0.025 for chance in below)
    low, high = (found[k - 1], found[n - k]) if k else (None, None)
    return Interval(median(found), low, high, n, "" if k else TOO_FEW)


def proportion(clusters: Sequence[tuple[int, int]]) -> Interval:
    """A share of hits with its 95 % interval (Wilson, J. Am. Stat. Assoc. 22, 1927); `clusters`: (hits, of) of each.

    What is of one cluster may be hit together. The number that the interval counts is divided by the design effect:
    the variance of the share between clusters over that of independent hits (Kish, Survey Sampling, 1965). With fewer
    than three clusters no interval is claimed.
    """
    hits, n = sum(k for k, _ in clusters), sum(of for _, of in clusters)
    if not n or len(clusters) < FEWEST_REPEATS:
        return Interval(hits / n if n else math.nan, None, None, n, TOO_FEW)
    p, count = hits / n, len(clusters)
    effect = 1.0
    if 0 < p < 1:
        between = count / (count - 1) * sum((k - p * of) ** 2 for k, of in clusters) / n**2
        effect = max(1.0, between / (p * (1 - p) / n))
    weight = student_t(0.95, count - 1) ** 2 * effect / n
    middle = (p + weight / 2) / (1 + weight)
    half = math.sqrt(weight * (p * (1 - p) + weight / 4)) / (1 + weight)
    return Interval(p, max(0.0, middle - half), min(1.0, middle + half), n)
