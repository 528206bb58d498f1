"""Who reaches the target soonest, or at least cost, and which are tied with that (95 %).

As of throughput (statistics/ranking.py) the lowest mean of many is partly luck, so the best is a set: what is not shown
to be slower than another. Compared are logarithms of geometric means over the seeds, all pairs of a study at once
(Bonferroni), with the spread of seeds as spread.py believes it.

A training that was stopped before the target counts as one that reached it at that moment. That flatters it, so whoever
is called slower all the same is; but such a configuration is never the best, and nothing is called slower than it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling_study.stats.intervals import FEWEST_REPEATS
from scaling_study.stats.spread import Spread, believed

FALSE_ALARMS = 0.05  # of studies of equal configurations, in which any is called slower than another
BEST, TIED, SLOWER, NOT_RESOLVED, TOO_FEW = "best", "tied", "slower", "not resolved", "too few seeds"


@dataclass(frozen=True)
class Times:
    """Of one configuration: what each of its seeds took to the target, or until it was stopped before; above 0."""

    reached: Sequence[float]
    stopped: Sequence[float] = ()

    @property
    def logs(self) -> np.ndarray:
        return np.log([*self.reached, *self.stopped])


def verdicts(groups: Sequence[Mapping[str, Times]]) -> dict[str, str]:
    """Configuration -> BEST, TIED, SLOWER, or NOT_RESOLVED where some were stopped and it is not shown to be slower;
    TOO_FEW with fewer than 3 seeds. `groups`: of configurations with one model and target, by their names.

    What is cheapest is asked likewise, with worker-hours or money in place of seconds.
    """
    sure = {name: of for group in groups for name, of in group.items() if len(of.logs) >= FEWEST_REPEATS}
    whole = {name: of for name, of in sure.items() if not of.stopped}
    pairs = sum(math.comb(sum(name in sure for name in group), 2) for group in groups)
    result = {name: TOO_FEW for group in groups for name in group}
    if not whole:
        return result | dict.fromkeys(sure, NOT_RESOLVED)
    spread, place = _spread(sure, whole)
    for group in groups:
        rivals = sorted((name for name in group if name in whole), key=lambda name: whole[name].logs.mean())
        for name in (name for name in group if name in sure):
            slower = any(_slower(sure, name, rival, spread, place, pairs) for rival in rivals if rival != name)
            best = name in rivals[:1]
            result[name] = BEST if best else SLOWER if slower else TIED if name in whole else NOT_RESOLVED
    return result


def _spread(sure: Mapping[str, Times], whole: Mapping[str, Times]) -> tuple[Spread, dict[str, int]]:
    """That of each in `sure`. Stopped values hide theirs: such a configuration has the widest of the others."""
    own = np.array([float(np.var(of.logs, ddof=1)) for of in whole.values()])
    trusted = believed(own, [len(of.logs) - 1 for of in whole.values()])
    variance, freedom = np.maximum(trusted.variance, own), trusted.freedom
    place = {name: index for index, name in enumerate(whole)}
    for name, of in sure.items():
        if name not in place:
            place[name] = len(variance)
            variance = np.append(variance, max(variance[: len(whole)].max(), float(np.var(of.logs, ddof=1))))
            freedom = np.append(freedom, freedom[: len(whole)].min())
    return Spread(variance, freedom, wary=True), place


def _slower(
    sure: Mapping[str, Times], name: str, rival: str, spread: Spread, place: Mapping[str, int], pairs: int
) -> bool:
    own, other = sure[name].logs, sure[rival].logs
    terms = [(np.array([place[who]]), 1 / len(logs)) for who, logs in ((name, own), (rival, other))]
    return bool(own.mean() - other.mean() > spread.half_widths(1 - FALSE_ALARMS / pairs, *terms)[0])
