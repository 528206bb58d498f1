"""Every law on one family of worker counts, and how far each is off a count that it has not seen.

    fitted on     1 2 4 . 16 32        left out: 8     held-out error = predicted / measured - 1, each count in turn

The law with the smallest mean error is the best; laws whose error is larger by no more than the measurements' own noise
are not told apart from it. With fewer than four counts a law of three coefficients would be tested on nothing, and none
is claimed.

Errors are relative and weigh alike at every count. `misfit` is what the residuals have beyond the noise. Where even the
laws that are kept miss the counts they were fitted to (a link that all share and that is full is none of them), nothing
is said of others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.frames.cache import once
from analysis.frames.results import Results
from analysis.scaling import laws
from analysis.scaling.families import Family, families
from analysis.scaling.laws import Law
from analysis.scaling.nonnegative import solve

FEWEST_COUNTS = 4
LACK_OF_FIT, MOST_MISFIT = 1e-3, 0.05  # p of the F test, and the relative misfit, from which no law is believed
TIE = 1e-18  # of a sum of squared relative residuals: what rounding makes of two forms that fit alike
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """One law, fitted to each of several draws of the measurements."""

    law: Law
    form: NDArray[np.int64]  # (draws,) which of the law's
    coefficients: Vector  # (draws, k)
    squares: Vector  # (draws,) of relative residuals, their sum

    def __call__(self, workers: Vector) -> Vector:
        """(draws, counts) worker-seconds of a sample."""
        values = np.zeros((len(self.form), len(workers)))
        for index in np.unique(self.form):
            ours = self.form == index
            values[ours] = self.coefficients[ours] @ self.law.forms[index].design(workers).T
        return values


@dataclass(frozen=True)
class Fitted:
    """One law on one family. `residuals`: measured / fitted - 1 of the worker-seconds, count by count; `held_out`:
    likewise predicted / measured - 1 of the throughput, each from the other counts."""

    law: Law
    curve: Curves  # of one draw: the measured means
    residuals: Vector
    held_out: Vector
    misfit: float  # relative standard deviation that noise does not explain

    @property
    def error(self) -> float:
        """Mean of the held-out errors' sizes."""
        return float(np.abs(self.held_out).mean())

    def beyond(self, noise: Noise) -> float:
        """Relative standard deviation by which the law is to be expected off a count that it has not seen."""
        explained = 0.0 if noise.errors is None else float((noise.errors**2).mean())
        return max(self.misfit, math.sqrt(max(0.0, float((self.held_out**2).mean()) - explained)))

    @property
    def formula(self) -> str:
        """`0.0012 + 3.1e-05 (n-1)` worker-seconds of a sample; terms that are nothing are left out."""
        names, values = self.law.forms[int(self.curve.form[0])].names, self.curve.coefficients[0]
        terms = [f"{value:.3g}{_written(name)}" for name, value in zip(names, values, strict=True) if value > 0]
        return " + ".join(terms) or "0"


def _written(term: str) -> str:
    """Of a term, as it stands behind its coefficient."""
    return {"1": "", "n-1": " (n-1)"}.get(term, f" {term}")


@dataclass(frozen=True)
class Noise:
    """Of the measured means: `errors` (counts,), relative standard errors, from the spread of all repeats together;
    None where no count has two."""

    errors: Vector | None
    freedom: int

    @property
    def half_width(self) -> float:
        """Relative, of a 95 % interval of the typical mean; 0 where nothing is known."""
        if self.errors is None:
            return 0.0
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, 0.975) * np.median(self.errors))


@dataclass(frozen=True)
class Comparison:
    """All laws on one family, the smallest held-out error first; the first `alike` are not told apart."""

    family: Family
    fits: tuple[Fitted, ...]
    alike: int
    noise: Noise

    @property
    def best(self) -> Fitted:
        return self.fits[0]

    @property
    def kept(self) -> tuple[Fitted, ...]:
        """The best and those not told apart from it."""
        return self.fits[: self.alike]

    @property
    def why(self) -> str:
        """Why nothing is said of counts that were not run; empty where a law that is kept describes those that were."""
        if not all(self._misses(candidate) for candidate in self.kept):
            return ""
        return (
            f"the best of them, {self.best.law.name}, misses counts that were measured by {100 * self.best.misfit:.0f} "
            f"%, where a mean is known to ±{100 * self.noise.half_width:.1f} %"
        )

    def _misses(self, candidate: Fitted) -> bool:
        """Whether the residuals of a law are surely not noise (F test for lack of fit), and matter."""
        freedom = len(self.family.workers) - candidate.law.coefficients
        if self.noise.errors is None or freedom < 1 or candidate.misfit <= MOST_MISFIT:
            return False
        from scipy.special import fdtrc

        variance = max(float((self.noise.errors**2).mean()), TIE)
        return bool(
            fdtrc(freedom, self.noise.freedom, float(candidate.curve.squares[0]) / freedom / variance) < LACK_OF_FIT
        )


@dataclass(frozen=True)
class Declined:
    """A family to which no law is fitted, and why."""

    family: Family
    why: str


@once
def comparisons(results: Results) -> list[Comparison | Declined]:
    """Of every family of the study, in their order."""
    return [compare(family) for family in families(results)]


def compare(family: Family) -> Comparison | Declined:
    """Every law, or why there is none."""
    workers = family.workers
    if len(workers) < FEWEST_COUNTS:
        counts = ", ".join(f"{count:.0f}" for count in workers)
        several = f"{len(workers)} worker counts ({counts})" if len(workers) > 1 else f"one worker count ({counts})"
        more = f"; left out: {'; '.join(family.left_out)}" if family.left_out else ""
        return Declined(family, f"{several}, and a law needs at least {FEWEST_COUNTS}{more}")
    spent, noise = workers / family.rates, noise_of(family.repeats)
    fits = sorted(
        (fitted(law, workers, spent, noise) for law in laws.laws(family.strong)), key=lambda candidate: candidate.error
    )
    alike = sum(fit.error <= fits[0].error + noise.half_width for fit in fits)
    return Comparison(family, tuple(fits), alike, noise)


def fitted(law: Law, workers: Vector, spent: Vector, noise: Noise) -> Fitted:
    """One law on worker-seconds `spent` (counts,) of a sample."""
    curve = curves(law, workers, spent[None], spent)
    held_out = []
    for left in range(len(workers)):
        others = np.arange(len(workers)) != left
        seen = curves(law, workers[others], spent[None, others], spent[others])
        held_out.append(float(spent[left] / seen(workers[[left]])[0, 0]) - 1)
    residuals = spent / curve(workers)[0] - 1
    freedom = len(workers) - law.coefficients
    explained = 0.0 if noise.errors is None else float((noise.errors**2).mean())
    misfit = math.sqrt(max(0.0, float(curve.squares[0]) / freedom - explained)) if freedom > 0 else 0.0
    return Fitted(law, curve, residuals, np.array(held_out), misfit)


def curves(law: Law, workers: Vector, drawn: Vector, scale: Vector) -> Curves:
    """`drawn`: (draws, counts) worker-seconds; residuals are taken relative to `scale` (counts,)."""
    designs = np.stack([form.design(workers) for form in law.forms]) / scale[:, None]
    coefficients, squares = solve(designs, drawn / scale)
    form = (squares <= squares.min(axis=0) + TIE).argmax(axis=0)  # of forms that fit alike, the first
    every = np.arange(len(drawn))
    return Curves(law, form, coefficients[form, every], squares[form, every])


def noise_of(repeats: Sequence[Vector]) -> Noise:
    """The relative spread between repeats is taken to be the same at every count: with three of each, no count says
    much of its own."""
    centred = [repeat / repeat.mean() - 1 for repeat in repeats]
    freedom = sum(len(deviations) - 1 for deviations in centred)
    if freedom < 1:
        return Noise(None, 0)
    spread = math.sqrt(sum(float((deviations**2).sum()) for deviations in centred) / freedom)
    return Noise(np.array([spread / math.sqrt(len(deviations)) for deviations in centred]), freedom)
