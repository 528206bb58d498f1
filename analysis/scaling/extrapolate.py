"""Throughput at worker counts that were not run, with an interval that holds all laws the data do not tell apart.

Each law is fitted over and over to means as likely as those that were measured: drawn with the spread of the repeats,
one draw of that spread for all counts since it is pooled, and with the law's own misfit on top. What it then says of a
count is 95 % of the draws, each off by as much as the law was off counts left out (beyond their noise). The interval
spans those of all laws that are kept: which of them is right is the larger doubt, and grows with the distance.

It is about this machine and this software at more workers; a switch that begins to saturate beyond the largest run, or
a second host after the first, is in no draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analysis.frames.cache import once
from analysis.frames.results import Results
from analysis.scaling.fit import Comparison, Curves, comparisons, curves

DRAWS, SEED = 400, 0
INSIDE = (2.5, 97.5)  # percentiles
FARTHEST = 4  # times the largest count measured, that tables and figures look ahead
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Extrapolated:
    """At one worker count. `samples_per_second` and `efficiency` by the best law; no bounds where counts had no
    repeats. `measured`: whether it lies within the counts that were."""

    workers: float
    samples_per_second: float
    low: float | None
    high: float | None
    efficiency: float
    efficiency_low: float | None
    efficiency_high: float | None
    inside: bool


@dataclass(frozen=True)
class Drawn:
    """One law on every draw, and how far off the law each draw is."""

    curves: Curves
    off: Vector  # (draws,) of a logarithm

    def rates(self, workers: Vector, off: bool = True) -> Vector:
        """(draws, counts) samples a second."""
        factor = np.exp(self.off)[:, None] if off else 1.0
        return np.asarray(factor * workers / np.maximum(self.curves(workers), 1e-300))


class Extrapolation:
    """What the laws of one comparison say beyond it."""

    def __init__(self, compared: Comparison) -> None:
        self.compared = compared

    @cached_property
    def drawn(self) -> list[Drawn]:
        """One for each law that is kept; none where the noise is unknown."""
        noise, family = self.compared.noise, self.compared.family
        if noise.errors is None:
            return []
        generator = np.random.default_rng(SEED)
        spent, shape = family.workers / family.rates, (DRAWS, len(family.workers))
        # Pooled over all counts, so one draw of the spread for all of them: Student's t, count by count.
        pooled = np.sqrt(noise.freedom / generator.chisquare(noise.freedom, DRAWS))[:, None]
        base = pooled * generator.standard_normal(shape) * noise.errors
        bands = []
        for fitted in self.compared.kept:
            off = base + fitted.misfit * generator.standard_normal(shape)
            curve = curves(fitted.law, family.workers, spent * np.exp(off), spent)
            bands.append(Drawn(curve, fitted.beyond(noise) * generator.standard_normal(DRAWS)))
        return bands

    def at(self, counts: Sequence[float]) -> list[Extrapolated]:
        """At each of these; for a line also between whole workers."""
        workers = np.array([float(count) for count in counts])
        fitted, curve = np.ones(1), self.compared.best.curve
        best, alone = workers / curve(workers)[0], 1.0 / curve(fitted)[0]
        rates = [drawn.rates(workers) for drawn in self.drawn]
        shares = [rate / drawn.rates(fitted) / workers for rate, drawn in zip(rates, self.drawn, strict=True)]
        low, high = _spans(rates, best)
        share_low, share_high = _spans(shares, best / alone / workers)
        seen = self.compared.family.workers
        return [
            Extrapolated(
                count, float(best[at]), low[at], high[at], float(best[at] / alone[0] / count), share_low[at],
                share_high[at], bool(seen.min() <= count <= seen.max()),
            )
            for at, count in enumerate(counts)
        ]  # fmt: skip

    @property
    def counts(self) -> list[int]:
        """Powers of two that were not run, up to FARTHEST times the largest that was."""
        seen = {int(count) for count in self.compared.family.workers}
        return [count for count in _powers(FARTHEST * max(seen)) if count not in seen]


@once
def extrapolations(results: Results) -> list[Extrapolation]:
    """Of every family that a law describes, in the order of comparisons(results). Nothing is drawn before it is asked
    for."""
    return [
        Extrapolation(comparison)
        for comparison in comparisons(results)
        if isinstance(comparison, Comparison) and not comparison.why
    ]


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _spans(drawn: Sequence[Vector], means: Vector) -> tuple[list[float | None], list[float | None]]:
    """The lowest and highest bound over laws, which hold the mean; None where nothing was drawn."""
    if not drawn:
        return [None] * len(means), [None] * len(means)
    bounds = np.stack([np.percentile(draw, INSIDE, axis=0) for draw in drawn])
    low, high = np.minimum(bounds[:, 0].min(axis=0), means), np.maximum(bounds[:, 1].max(axis=0), means)
    return [float(value) for value in low], [float(value) for value in high]
