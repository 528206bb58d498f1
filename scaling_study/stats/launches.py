"""How launches that configurations share differ, beside what is common to all that were measured together.

    log throughput in a launch = the configuration's own
                               + what came over all that were alive together     a machine that drifts
                               + what came over its processes                    their start, memory, cores
                               + what came over it alone

A ratio of two configurations is taken within each launch, where what is common to both cancels: all but the last line
for two that share processes, all but the last two for others. How much those lines differ from launch to launch is
estimated from all configurations (Kalibera and Jones, ISMM 2013, have the levels; spread.py how far configurations are
believed to be alike). Pure functions of numbers, all on the logarithm, where a spread of 0.01 is one of 1 %.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_study.stats.intervals import FEWEST_REPEATS, MOST_REPEATS, student_t, welch_satterthwaite
from scaling_study.stats.spread import MOST_POOLED, WORTH, believed, moderated

# number/0-processes, of one that ended before others number/0.rounds-processes
LAUNCH_NAME = re.compile(r"[0-9]{1,9}/[0-9]{1,9}(?:\.[0-9]{1,9})?-[0-9]{1,9}-\w{1,60}|gates-[0-9]{1,9}")
Values = NDArray[np.float64]
TURNS = 100  # of fitting rows and columns by turns; where nothing is missing, one is enough
FITTED = 1e-12
LEAST_FREEDOM = 0.9  # below, what is left says nothing of a spread
SURE = 0.99  # confidence of a sign that needs no more launches


@dataclass(frozen=True)
class LaunchSpread:
    """How much one configuration differs from launch to launch, on the logarithm, and how well that is known.

    `variance`: of it alone, beside its processes. `processes`: of all that its processes measure together.
    `members`: how many configurations they measure. Freedom of 0: nothing is known of it.
    """

    variance: float
    freedom: float
    processes: float
    processes_freedom: float
    members: int

    @property
    def among_others(self) -> list[tuple[float, float]]:
        """Its own variance that the processes' does not hold yet, and its degrees of freedom: a mean over members has a
        share of each one's, and the only member all of its own."""
        return [(self.variance * (1 - 1 / self.members), self.freedom)] if self.members > 1 else []


def of_ratio(
    a: LaunchSpread, b: LaunchSpread, together: bool, differences: Sequence[float] = ()
) -> tuple[float, float]:
    """Variance of the log ratio of two within one launch, and its degrees of freedom; 0 and 0 where they are unknown.

    `together`: by the same processes, whose start then falls on both alike. `differences`: (n,), the log ratio in each
    of the planned launches that both shared. With two or more of them the variance is drawn towards their own. The
    study's spreads are of these differences too, so that a study of few configurations knows little beside them.
    """
    few = len(differences) - 1
    if together:
        variance, freedom = total([(a.variance, a.freedom), (b.variance, b.freedom)])
        most = max(freedom, (a.members - 1.0) * few)  # of the study's spreads, or of its own processes' alone
    else:
        known = max(a.processes_freedom, b.processes_freedom)
        processes = [(each.processes, each.processes_freedom) for each in (a, b)]
        if two_groups := known <= few:  # their spreads are one estimate
            processes = [(a.processes + b.processes, known)]
        variance, freedom = total([*processes, *a.among_others, *b.among_others])
        most = known if a.members == b.members == 1 else freedom if two_groups else math.inf
    if not freedom or few < 1:
        return variance, freedom
    own = float(np.var(differences, ddof=1))
    if most <= few + FITTED:  # nothing else tells of their spread
        return own, float(few)
    drawn, freedoms = moderated(variance, freedom, own, few)
    return float(drawn), min(float(freedoms), most)


def is_sure(log_ratio: float, variance: float, freedom: float) -> bool:
    """True where a mean log ratio of this variance surely is not 0: its interval at SURE leaves 0 out.

    SURE is more than a verdict's 95 %, which is asked for again after the launches that this may add.
    """
    return freedom > 0 and abs(log_ratio) > student_t(SURE, freedom) * math.sqrt(variance)


def needed(variance: float, freedom: float, target: float, measured: int | None = None) -> int:
    """Launches that bring the 95 % interval of a ratio, of this variance in one launch, to +-`target` (0.02: 2 %).

    The interval rests on the degrees of freedom that there are (Stein's second stage), or, with `measured`, on one more
    for each launch beyond so many: those of a study that plans them all. 0 where nothing is known of it, or where even
    MOST_REPEATS are too few.
    """
    if freedom <= 0:
        return 0
    if measured is None:
        return math.ceil(variance * (student_t(0.95, freedom) / math.log1p(target)) ** 2)

    def reached(count: int) -> bool:
        quantile = student_t(0.95, max(1.0, freedom + count - measured))
        return quantile * math.sqrt(variance / count) <= math.log1p(target)

    count = FEWEST_REPEATS + bisect_left(range(FEWEST_REPEATS, MOST_REPEATS + 1), True, key=reached)
    return count if count <= MOST_REPEATS else 0


def together(launch: str) -> str:
    """The name of all that were alive at once: `3/0` of `3/0-1-horovod`."""
    return launch.partition("-")[0]


def total(terms: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Variances that add up, with their degrees of freedom (Welch and Satterthwaite); 0 and 0 where one is unknown."""
    if any(freedom <= 0 for _, freedom in terms):
        return 0.0, 0.0
    seen = [term for term in terms if term[0] > 0]
    if not seen:
        return 0.0, 0.0
    variances, freedoms = zip(*seen, strict=True)
    return sum(variances), float(welch_satterthwaite(variances, freedoms))


def differences(a: Mapping[str, float], b: Mapping[str, float]) -> list[float]:
    """The log ratio in each launch that both shared, from their log values by launch."""
    return [value - b[name] for name, value in a.items() if name in b]


def logs_by_launch(logs: Sequence[Mapping[str, float]]) -> Values:
    """(m, launches) values from those of each row by launch; nan where one was not measured. Any order of launches."""
    names = list(dict.fromkeys(name for row in logs for name in row))
    return np.array([[row.get(name, math.nan) for name in names] for row in logs]).reshape(len(logs), len(names))


def spreads(logs: ArrayLike, groups: Sequence[Hashable]) -> list[LaunchSpread]:
    """`logs`: (m, launches) log throughputs, nan where one was not measured; `groups`: (m,), each one's processes.

    The processes' spread is at least that of all groups, pooled.
    """
    x = np.asarray(logs, dtype=np.float64)
    names = list(dict.fromkeys(groups))
    rows = {name: [at for at, group in enumerate(groups) if group == name] for name in names}
    variances, freedoms = np.zeros(len(x)), np.zeros(len(x))
    means = np.full((len(names), x.shape[1]), math.nan)
    for at, name in enumerate(names):
        left, common = fitted(x[rows[name]])
        variances[rows[name]], freedoms[rows[name]] = variance_left(left)
        means[at] = common
    known = freedoms > 0
    if known.any():
        own, whole = np.maximum(1.0, freedoms[known]), float(freedoms.sum())
        # A ratio adds up two of them, which may be one estimate: together they know no more than all of these do.
        most = np.maximum(whole / 2 if whole < MOST_POOLED else math.inf, own)
        spread = believed(variances[known], own, worth=np.minimum(most - own, WORTH))
        variances[known], freedoms[known] = spread.variance, np.minimum(spread.freedom, most)
    # Few groups say little, and may be unlike: of each group's own variance and that of all the wider one counts. Where
    # its own is, its degrees of freedom lie between those of the two.
    of_groups, each = variance_left(fitted(means)[0])
    every = float(each.sum())
    pooled = float(of_groups @ each) / every if every else 0.0
    shared: dict[Hashable, tuple[float, float]] = {
        name: (own, (every + freedom) / 2) if own > pooled else (pooled, every)
        for name, own, freedom in zip(names, of_groups.tolist(), each.tolist(), strict=True)
    }
    return [
        LaunchSpread(float(variances[at]), float(freedoms[at]), *shared[group], len(rows[group]))
        for at, group in enumerate(groups)
    ]


def fitted(x: Values) -> tuple[Values, Values]:
    """(m, launches) values without each row's mean and each launch's, and the means of launches, (launches,).

    By least squares, nan where there is no value. With one row nothing is left.
    """
    there = np.isfinite(x)
    in_row, in_column = np.maximum(there.sum(axis=1), 1), np.maximum(there.sum(axis=0), 1)
    left, common = np.where(there, x, 0.0), np.zeros(x.shape[1])
    for _ in range(TURNS):
        rows = left.sum(axis=1) / in_row
        left = np.where(there, left - rows[:, None], 0.0)
        columns = left.sum(axis=0) / in_column
        left = np.where(there, left - columns, 0.0)
        common += columns
        if max(np.abs(rows).max(initial=0.0), np.abs(columns).max(initial=0.0)) < FITTED:
            break
    return np.where(there, left, math.nan), np.where(there.any(axis=0), common, math.nan)


def variance_left(left: Values) -> tuple[Values, Values]:
    """(m,) variances of what is left in each row, and their degrees of freedom; 0 and 0 where it says nothing."""
    there = np.isfinite(left)
    there &= there.sum(axis=0) > 1  # what was alone in a launch leaves nothing there, whatever it was
    count = there.sum(axis=1)
    share = np.where(there, 1 - 1 / np.maximum(there.sum(axis=0), 1), 0.0).sum(axis=1) / np.maximum(count, 1)
    freedom = np.maximum(count - 1, 0) * share
    squares = (np.where(there, left, 0.0) ** 2).sum(axis=1)
    known = freedom >= LEAST_FREEDOM
    return np.where(known, squares / np.where(known, freedom, 1.0), 0.0), np.where(known, freedom, 0.0)
