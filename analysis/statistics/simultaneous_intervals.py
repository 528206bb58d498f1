"""How far configurations of one study may be from their true speed, and two of them from their true ratio; and which of
many differences are more than chance."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.frames import launches
from analysis.frames.configurations import values
from analysis.frames.row_types import ConfigurationRow
from scaling_study.stats.intervals import FEWEST_REPEATS, first_stage
from scaling_study.stats.launches import total
from scaling_study.stats.spread import Spread, believed

Row = ConfigurationRow
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Uncertainty:
    """`place`: id -> which of the m configurations with enough repeats it is. `counts`: (m,), how many each has.

    `logs`: (m,), of their throughput. Of what shared launches, over those in common (launches.common): what came over
    all at once is in each of them, and in no difference. With `over_baselines` what is compared are speed-ups: each
    also has the uncertainty of its baseline.
    """

    place: Mapping[str, int]
    spread: Spread | None  # None: there is no such configuration
    counts: Values
    logs: Values
    over_baselines: bool

    @classmethod
    def of_rows(cls, rows: Sequence[Row], *, over_baselines: bool) -> Uncertainty:
        """Of every configuration that was measured: the spreads of all models together say what each one's is."""
        sure = [row for row in rows if row["n"] >= FEWEST_REPEATS]
        place = {str(row["configuration"]): index for index, row in enumerate(sure)}
        counts = np.array([float(row["n"]) for row in sure])
        logs = np.log([float(row["samples_per_second"]) for row in sure])
        variance, freedom, alone = np.zeros(len(sure)), np.zeros(len(sure)), list[int]()
        common = launches.common(sure)
        for at, row in enumerate(sure):
            by_launch = launches.logs(row)
            if common and all(name in by_launch for name in common) and (within := _within_launches(row)):
                variance[at], freedom[at] = within
                counts[at], logs[at] = len(common), np.mean([by_launch[name] for name in common])
            else:
                alone.append(at)
        if alone:  # the highest of many is looked for: of two views of a spread, the wider one
            stages = [np.log(first_stage(np.array(values(sure[at])), int(sure[at]["planned"]))) for at in alone]
            variances = [float(np.var(stage, ddof=1)) for stage in stages]
            believable = believed(variances, [len(stage) - 1 for stage in stages])
            # What came over all at once is in their own spread, and in the launches of those that they are compared
            # with if they were measured in rounds too, whose spread is without it.
            elsewhere = np.array([bool(launches.names(sure[at])) for at in alone])
            more = np.where(elsewhere, counts[alone] / len(common), 0.0) if common else 0.0
            variance[alone] = (1 + more) * np.maximum(believable.variance, variances)
            freedom[alone] = believable.freedom
        spread = Spread(variance, freedom, wary=True) if sure else None
        return cls(place, spread, counts, logs, over_baselines)

    def knows(self, row: Row) -> bool:
        """Whether it, and its baseline where that counts, has repeats enough for an interval."""
        return all(name in self.place for name in self._whose(row))

    def log_values(self, rows: Sequence[Row], by: str) -> Values:
        """(q,) logarithms of what is compared: throughput, that of a worker, or efficiency. All must be known."""
        own = np.array([self.logs[self.place[str(row["configuration"])]] for row in rows])
        workers = np.log([float(row["workers"]) for row in rows])
        if by == "efficiency":
            baselines = [self.logs[self.place[str(row["baseline"])]] for row in rows]
            ideal = np.log([row["speedup"] / row["efficiency"] for row in rows])
            return np.asarray(own - baselines - ideal)
        return np.asarray(own - workers if by == "samples_per_worker_second" else own)

    def half_widths(self, rows: Sequence[Row], confidence: float) -> Values:
        """(q, q) of the logarithm of each one's value over each other's; 0 against itself. All must be known."""
        places = np.array([[self.place[name] for name in self._whose(row)] for row in rows]).T
        return self._closer(rows) * np.stack([self._against(own, places, confidence) for own in places.T])

    def _closer(self, rows: Sequence[Row]) -> Values:
        """(q, q) by how much narrower two are held against each other whose launches were all of the same processes:
        their start falls on both alike. Where speed-ups are compared, of one baseline."""
        alike: dict[tuple[object, ...], list[int]] = {}
        for at, row in enumerate(rows):
            if own := launches.names(row):
                alike.setdefault((*own, self.over_baselines and row["baseline"]), []).append(at)
        factors = np.ones((len(rows), len(rows)))
        for members in alike.values():
            for at, other in itertools.combinations(members, 2):
                factors[at, other] = factors[other, at] = launches.share_of_processes(rows[at], rows[other])
        return factors

    def p_values(self, pairs: Sequence[tuple[Row, Row]]) -> Values:
        """(k,) how likely ratios of throughput as far from 1 as these are by chance. All must be known, k >= 1."""
        assert self.spread is not None
        a, b = (np.array([self.place[str(row["configuration"])] for row in side]) for side in zip(*pairs, strict=True))
        return self.spread.p_values(self.logs[a] - self.logs[b], (a, 1 / self.counts[a]), (b, 1 / self.counts[b]))

    def _against(self, own: NDArray[np.intp], others: NDArray[np.intp], confidence: float) -> Values:
        """(q,) `own`: (k,), the places of one, and of its baseline where that counts; `others`: (k, q)."""
        assert self.spread is not None
        # log value = log speed, less that of the baseline. Whatever stands on both sides cancels.
        whose = np.concatenate([np.broadcast_to(own[:, None], others.shape), others])
        signs = np.array([1, -1, -1, 1] if self.over_baselines else [1, -1])[:, None]
        same = whose[:, None] == whose
        first = ~np.array([same[index, :index].any(axis=0) for index in range(len(whose))])
        factors = first * (same * signs).sum(axis=1) ** 2 / self.counts[whose]
        with np.errstate(invalid="ignore"):  # 0 / 0 where everything cancels
            return np.nan_to_num(self.spread.half_widths(confidence, *zip(whose, factors, strict=True)))

    def _whose(self, row: Row) -> list[str]:
        own = str(row["configuration"])
        return [own, str(row["baseline"])] if self.over_baselines else [own]


def _within_launches(row: Row) -> tuple[float, float] | None:
    """Variance and degrees of freedom of one launch's log value beside others'; None where it shared none."""
    known = launches.spread_of(row)
    if known is None:
        return None
    variance, freedom = total([(known.processes, known.processes_freedom), *known.among_others])
    return (variance, freedom) if freedom else None


def holm(p_values: ArrayLike) -> Values:
    """(m,) p-values -> p-values corrected for being m of them: one is kept where this is at most the level."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected
