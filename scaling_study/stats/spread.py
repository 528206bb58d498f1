"""How much repeats vary: believed of each configuration partly from its own few, partly from all the others'.

Three repeats say little about their own spread; one spread pooled over all configurations cries wolf where some are
noisier than others. Between the two lies the usual model of many small groups (Smyth, "Linear Models and Empirical
Bayes Methods", Stat. Appl. Genet. Mol. Biol. 3, 2004):

    variance of a configuration ~ scale x likeness / chi-squared(likeness)        likeness = infinity: all are one

Smyth takes the one likeness and scale that fit best, which is too sure of itself with few configurations. Here a grid
of both is averaged over, each point weighted by how well it explains the spreads that were seen, and what is then known
of each configuration's spread is put as a variance with degrees of freedom. Where they are so unlike that the others
add next to nothing, each has the degrees of freedom of its own repeats. False alarms and power are simulated in
tests/analysis/test_detection.py. Everything is on the logarithm, where a spread of 0.01 is one of 1 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_study.stats.intervals import welch_satterthwaite

# Numbers as text, as far as the library writes some: the analysis has the others (analysis/text.py).


def three_digits(value: float) -> str:
    """`4,840`, `31.2`, `0.0573`, `inf`."""
    return f"{float(f'{value:.3g}'):,.10g}"


Values = NDArray[np.float64]
Term = tuple[NDArray[np.intp], ArrayLike]  # of a difference: (q,) configurations, (q,) factors of their variances

LIKENESS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1e6])  # the last: all are one
SCALES = np.linspace(-4, 4, 17)  # around the best, in standard errors
LEAST_SHARE = 1e-5  # of the median variance: repeats that agree by chance to the last digit do not vary by nothing
ROUNDING = 1e-18
WORTH = 3  # degrees of freedom that the others must add to be believed
MOST_POOLED = 12.0  # degrees of freedom that the others add at most where one's own repeats may contradict them
UNLIKELY, STRICT = 0.6, 3  # an own variance that is rarer than this makes them count less, by this power


@dataclass(frozen=True)
class Spread:
    """Believed spreads of m configurations. `variance`, `freedom`: (m,), of one repeat's logarithm.

    `wary`: how far the degrees of freedom of a difference are from Welch's (0) to the fewest that are in it (1).
    Welch's are too many where two spreads are very unlike and each is known from three repeats.
    """

    variance: Values
    freedom: Values
    wary: float = 0.0

    @property
    def typical(self) -> float:
        """The relative standard deviation between repeats of a typical configuration."""
        return math.sqrt(math.exp(float(np.log(self.variance).mean())))

    def p_values(self, differences: ArrayLike, *terms: Term) -> Values:
        """How likely differences of log means as large as these, (q,), are by chance, up or down.

        Each is of means whose variances add up over `terms`: 1 / n of a configuration with n repeats.
        """
        from scipy.special import stdtr

        variance, freedom = self.of_sum(*terms)
        return np.asarray(2 * stdtr(freedom, -np.abs(differences) / np.sqrt(variance)))

    def half_widths(self, confidence: ArrayLike, *terms: Term) -> Values:
        """Half of the interval of a difference of log means, (q,); the arguments as of p_values. `confidence`: one, or
        (q,)."""
        from scipy.special import stdtrit

        variance, freedom = self.of_sum(*terms)
        return np.asarray(stdtrit(freedom, 0.5 + np.asarray(confidence) / 2) * np.sqrt(variance))

    def of_sum(self, *terms: Term) -> tuple[Values, Values]:
        """(q,) variances of differences, and their degrees of freedom."""
        parts = [(self.variance[whose] * np.asarray(factors), self.freedom[whose]) for whose, factors in terms]
        total = np.asarray(sum(part for part, _ in parts))
        freedom = welch_satterthwaite([part for part, _ in parts], [own for _, own in parts])
        if not self.wary:
            return total, freedom
        fewest = np.min([np.where(part > 0, own, np.inf) for part, own in parts], axis=0)
        return total, freedom + self.wary * (fewest - freedom)


def believed(variances: ArrayLike, freedoms: ArrayLike, worth: ArrayLike = WORTH) -> Spread:
    """`variances`: (m,), of the logarithms of each configuration's repeats; `freedoms`: (m,), what each rests on, >= 1.

    m >= 1. Others that add fewer than `worth` degrees of freedom, one number or (m,), to one's own add none.
    """
    seen, own = np.asarray(variances, dtype=np.float64), np.asarray(freedoms, dtype=np.float64)
    seen = np.maximum(seen, max(LEAST_SHARE * float(np.median(seen)), ROUNDING))
    likeness, scale, weights = _weighed(seen, own)
    # At each point 1 / variance is Gamma distributed; averaged over the points it is taken to be one again.
    freedom = likeness[:, None] + own
    precision = freedom / (likeness[:, None] * scale[:, None] + own * seen)
    mean = weights @ precision
    variance, whole = 1 / mean, 2 * mean**2 / (weights @ (precision**2 * (1 + 2 / freedom)) - mean**2)
    return Spread(variance, np.where(whole < own + np.asarray(worth), own, whole))


def moderated(variance: ArrayLike, freedom: ArrayLike, own: ArrayLike, own_freedom: ArrayLike) -> tuple[Values, Values]:
    """Variances that are known from others, drawn towards those of one's own repeats, and their degrees of freedom.

    All (q,), or numbers; own_freedom >= 1, and own >= 0. Both add up by their degrees of freedom, as in Smyth's
    moderated t. The more improbable an own variance as large as this would be under that of the others, the fewer
    degrees of freedom the others have, as in robust empirical Bayes (Phipson and others, Ann. Appl. Stat. 10, 2016). A
    row that is three times as noisy as the rest so keeps its noise. Coverage, row by row: tests/stats.
    """
    from scipy.special import fdtrc

    pooled, its = np.asarray(variance, dtype=np.float64), np.asarray(own, dtype=np.float64)
    most, few = np.minimum(freedom, MOST_POOLED), np.asarray(own_freedom, dtype=np.float64)
    rarer = fdtrc(few, most, its / np.maximum(pooled, ROUNDING))
    others = most * np.minimum(1.0, rarer / UNLIKELY) ** STRICT
    return (others * pooled + few * its) / (others + few), others + few


def _weighed(seen: Values, own: Values) -> tuple[Values, Values, Values]:
    """(k,) each: likeness, scale and weight of the points of the grid."""
    from scipy.special import digamma, gammaln, polygamma

    half, prior = own / 2, LIKENESS[:, None] / 2
    # log variance has this mean and variance around log scale: Smyth's equations, solved for the scale.
    centre = (np.log(seen) - digamma(half) + np.log(half)).mean() + digamma(prior[:, 0]) - np.log(prior[:, 0])
    error = np.sqrt((polygamma(1, half) + polygamma(1, prior)).mean(axis=1) / len(seen))
    log_scale = centre[:, None] + error[:, None] * SCALES
    # Of each point: variances over scale are F-distributed with own and likeness degrees of freedom.
    over = np.log(seen) - log_scale[:, :, None]
    each = half * over - (half + prior[:, :, None]) * np.log1p(half / prior[:, :, None] * np.exp(over))
    constant = (gammaln(half + prior) - gammaln(prior) + half * np.log(half / prior)).sum(axis=1)
    evidence = each.sum(axis=2) + (constant + np.log(error))[:, None]  # steps are as wide as the error
    weights = np.exp(evidence - evidence.max()).ravel()
    return np.repeat(LIKENESS, len(SCALES)), np.exp(log_scale).ravel(), weights / weights.sum()
