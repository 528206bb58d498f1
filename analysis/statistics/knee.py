"""The knee, beyond which another worker returns too little, and the laws' throughput at counts not run behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.frames.results import Results, once
from analysis.statistics.scaling_laws import (
    AMDAHL,
    Curves,
    Family,
    Law,
    LawComparison,
    Vector,
    comparisons,
    curves,
    fitted,
    noise_of,
)
from scaling_study.stats.intervals import FEWEST_REPEATS, student_t
from scaling_study.stats.launches import total

# The interval at a count that was not run holds all laws that are tied. Each law is fitted to 400 sets of means as
# likely as the measured ones: drawn with the spread of the repeats (pooled over all counts), with the law's own misfit
# on top. Each draw is then off by as much as the law was off counts left out, beyond their noise. The interval spans
# 95 % of the draws of every tied law. A switch that saturates beyond the largest run is in no draw. A law of one host
# is not asked for more workers than a host holds, nor one over hosts for fewer than ran over hosts (Family.fewest and
# most): for those `scaling-study predict` simulates the steps on a network.

DRAWS, SEED = 400, 0
INSIDE = (2.5, 97.5)  # percentiles
FARTHEST = 4  # times the largest count measured, that tables and figures look ahead


@dataclass(frozen=True)
class DrawnLaw:
    """One law on every draw, and how far off the law each draw is."""

    curves: Curves
    off: Vector  # (draws,) of a logarithm

    def rates(self, workers: Vector, off: bool = True) -> Vector:
        """(draws, counts) samples a second."""
        factor = np.exp(self.off)[:, None] if off else 1.0
        return np.asarray(factor * workers / np.maximum(self.curves(workers), 1e-300))


@dataclass(frozen=True)
class Extrapolation:
    """Throughput at counts that were not run, by the tied laws of one comparison."""

    compared: LawComparison

    @cached_property
    def drawn(self) -> list[DrawnLaw]:
        """One for each law that is kept; none where the noise is unknown."""
        noise, family = self.compared.noise, self.compared.family
        if noise.errors is None:
            return []
        generator = np.random.default_rng(SEED)
        spent, shape = family.workers / family.rates, (DRAWS, len(family.workers))
        # One draw of the spread for all counts: Student's t, count by count.
        pooled = np.sqrt(noise.freedom / generator.chisquare(noise.freedom, DRAWS))[:, None]
        base = pooled * generator.standard_normal(shape) * noise.errors
        bands = []
        for fit in self.compared.kept:
            off = base + fit.misfit * generator.standard_normal(shape)
            curve = curves(fit.law, family.workers, spent * np.exp(off), spent)
            bands.append(DrawnLaw(curve, fit.beyond(noise) * generator.standard_normal(DRAWS)))
        return bands

    def rates(self, workers: Vector) -> Vector:
        """(counts,) samples a second by the best law."""
        return np.asarray(workers / self.compared.best.curve(workers)[0])

    def bounds(self, workers: Vector) -> tuple[Vector, Vector] | None:
        """95 % bounds of `rates`, each (counts,), over all tied laws; None where the noise is unknown."""
        if not self.drawn:
            return None
        ends = np.stack([np.percentile(law.rates(workers), INSIDE, axis=0) for law in self.drawn])
        rates = self.rates(workers)
        return np.minimum(ends[:, 0].min(axis=0), rates), np.maximum(ends[:, 1].max(axis=0), rates)

    @property
    def counts(self) -> list[int]:
        """Powers of two that were not run, up to FARTHEST times the largest that was, of the family's own regime."""
        family = self.compared.family
        seen = {int(count) for count in family.workers}
        powers = (2**power for power in range(self.farthest(FARTHEST).bit_length()))
        return [count for count in powers if count not in seen and (count >= family.fewest or count == 1)]

    def farthest(self, times: int) -> int:
        """So many times the largest count measured, or what a host holds where the law is of one host."""
        family = self.compared.family
        most = times * int(family.workers.max())
        return most if family.most is None else min(most, family.most)


@once
def extrapolations(results: Results) -> list[Extrapolation]:
    """One for every family that a law describes, in the order of comparisons(results)."""
    return [
        Extrapolation(comparison)
        for comparison in comparisons(results)
        if isinstance(comparison, LawComparison) and not comparison.why
    ]


SHARE = 0.5
KNEE_FARTHEST = 16  # times the largest count measured
MOST = 1 << 14  # workers: every count up to there is looked at, on every draw


@dataclass(frozen=True)
class Knee:
    """The last worker count whose last worker returns at least `share` of what one alone does: the return of the
    (n+1)-th is (throughput(n+1) - throughput(n)) / throughput(1). A count of `looked` stands for that or more. `low`
    and `high`, over the draws of all tied laws, are None where counts had no repeats."""

    workers: int
    low: int | None
    high: int | None
    share: float
    looked: int

    @property
    def text(self) -> str:
        """`12 workers [10, 16]`; `more than 128 workers`."""
        ends = [f"beyond {self.looked}" if end >= self.looked else str(end) for end in (self.low, self.high) if end]
        count = f"{self.workers} worker{'s' * (self.workers != 1)}"
        text = f"more than {self.looked} workers" if self.workers >= self.looked else count
        return f"{text} [{', '.join(ends)}]" if ends else text


@dataclass(frozen=True)
class Returned:
    """The throughput that each worker between two measured counts added, as a share of one worker's."""

    before: int
    after: int
    share: float
    low: float | None
    high: float | None


# Laws of two coefficients, for the two or three counts of someone who only asks whether more workers would pay: a cost
# of company that grows with workers, with their logarithm, or nears a limit as the bytes of a ring do. Nothing tells
# them apart there, so all are kept, and the interval of a knee holds all of them.
OF_FEW = (Law("logarithmic", (("1", "log2 n"),)), AMDAHL, Law("limited", (("1", "(n-1)/n"),)))


def of_few(family: Family) -> LawComparison:
    """The laws that two worker counts decide, on a family of two or three."""
    spent, noise = family.workers / family.rates, noise_of(family.repeats)
    fits = tuple(fitted(law, family.workers, spent, noise) for law in OF_FEW)
    return LawComparison(family, fits, len(fits), noise)


def knee(extrapolation: Extrapolation, share: float = SHARE) -> Knee:
    """The knee of one family, for a `share` between 0 and 1."""
    largest = int(extrapolation.compared.family.workers.max())
    looked = max(largest, min(extrapolation.farthest(KNEE_FARTHEST), MOST))
    counts, fewest = np.arange(1.0, looked + 1), extrapolation.compared.family.fewest
    best = _last(extrapolation.rates(counts)[None], share, fewest)[0]
    drawn = [_last(law.rates(counts, off=False), share, fewest) for law in extrapolation.drawn]
    if not drawn:
        return Knee(int(best), None, None, share, looked)
    bounds = [np.percentile(draw, (2.5, 97.5), method="inverted_cdf") for draw in drawn]
    low, high = min(bound[0] for bound in bounds), max(bound[1] for bound in bounds)
    return Knee(int(best), int(min(low, best)), int(max(high, best)), share, looked)


def _last(rates: Vector, share: float, fewest: int = 1) -> Vector:
    """(draws,) the last count before returns fall below `share`, from `fewest` on; rates: (draws, counts 1, 2, ..)."""
    returned = np.diff(rates, axis=1) / rates[:, :1]
    below = returned < share
    below[:, : fewest - 1] = False
    return np.asarray(np.where(below.any(axis=1), below.argmax(axis=1) + 1, rates.shape[1]), dtype=np.float64)


def returns(family: Family) -> list[Returned]:
    """Between each two neighbouring counts that were measured; none without a run with one worker.

    95 % by the delta method on the means of three counts (two, where the first is one worker), Welch's degrees of
    freedom; no interval with fewer than 3 repeats of one of them.
    """
    workers, repeats = [int(count) for count in family.workers], family.repeats
    means, found = [float(repeat.mean()) for repeat in repeats], list[Returned]()
    for at in range(1, len(workers)) if workers[0] == 1 else ():
        before, after = workers[at - 1], workers[at]
        share = (means[at] - means[at - 1]) / (after - before) / means[0]
        slopes = {0: -share / means[0]}
        for place, sign in ((at, 1.0), (at - 1, -1.0)):
            slopes[place] = slopes.get(place, 0.0) + sign / (after - before) / means[0]
        values = [repeats[place] for place in slopes]
        if min(map(len, values)) < FEWEST_REPEATS:
            found.append(Returned(before, after, share, None, None))
            continue
        terms = [
            (slope**2 * float(np.var(seen, ddof=1)) / len(seen), len(seen) - 1.0)
            for slope, seen in zip(slopes.values(), values, strict=True)
        ]
        variance, freedom = total(terms)
        half = student_t(0.95, freedom) * math.sqrt(variance) if freedom else 0.0
        found.append(Returned(before, after, share, share - half, share + half))
    return found
