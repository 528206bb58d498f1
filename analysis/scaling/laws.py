"""Scaling laws, all as one thing: worker-seconds of a sample, a sum of terms that only grow with n workers.

    w(n) = n / throughput(n) = sum of coefficients x terms,   coefficients >= 0

    law           weak scaling (batch of a worker fixed)         strong scaling (global batch fixed)
    alpha-beta    1, latency(n), (n-1)/n                         1, n-1, n latency(n)
    Amdahl        1, n-1                                         the same
    USL           1, n-1, n (n-1)                                the same
    Extra-P       1, n^i log2(n)^j, the best i and j             the same

alpha-beta: a step computes, then reduces b bytes in 2 (n-1) messages of alpha (a ring; 2 log2 n for a tree) and
2 (n-1)/n b beta; or, where computing hides what two workers send, only what is more than that. Under strong scaling the
bytes' (n-1)/n cannot be told from what of computing is not divided, so both are one term; with a ring's latency this is
the USL. Amdahl (AFIPS 30, 1967), as throughput n / (1 + s (n-1)): s is what cannot be spread. USL: Gunther's universal
scalability law, with n (n-1) for coherence. Extra-P (Calotoiu et al., SC 2013) looks for one term of such a form; i and
j are chosen anew whenever it is fitted.

Nothing here gets better with workers: what is superlinear is no law's, and stays in the residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Term = Callable[[Vector], Vector]


@dataclass(frozen=True)
class Form:
    """One choice of terms: what a law is fitted with. `names`: of the terms, for a person."""

    terms: tuple[Term, ...]
    names: tuple[str, ...]

    def design(self, workers: Vector) -> Vector:
        """(counts, terms)."""
        return np.stack([term(workers) for term in self.terms], axis=1)


@dataclass(frozen=True)
class Law:
    """`forms`: of which the one with the least residuals is taken, on whatever counts it is fitted to."""

    name: str
    forms: tuple[Form, ...]

    @property
    def coefficients(self) -> int:
        """How many are fitted, the choice of a form apart."""
        return len(self.forms[0].terms)


def _one(n: Vector) -> Vector:
    return np.ones_like(n)


def _others(n: Vector) -> Vector:
    return n - 1


def _ring(n: Vector) -> Vector:
    return n - 1


def _tree(n: Vector) -> Vector:
    return np.asarray(np.log2(n))


def _bytes(n: Vector) -> Vector:
    return np.asarray((n - 1) / n)


def _times_n(term: Term) -> Term:
    return lambda n: np.asarray(n * term(n))


def _beyond_two(term: Term) -> Term:
    """What the term has more than with two workers: none up to there."""
    return lambda n: np.asarray(np.maximum(0.0, term(n) - term(np.full_like(n, 2.0))))


def _power(exponent: float, logs: int) -> Term:
    return lambda n: np.asarray(n**exponent * np.log2(n) ** logs)


LATENCIES = {"n-1": _ring, "log2 n": _tree}
EXPONENTS = (0.0, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 1.0, 4 / 3, 3 / 2, 2.0)
LOGS = (0, 1, 2)
AMDAHL = Law("Amdahl", (Form((_one, _others), ("1", "n-1")),))
USL = Law("USL", (Form((_one, _others, _times_n(_others)), ("1", "n-1", "n (n-1)")),))
EXTRA_P = Law(
    "Extra-P",
    tuple(
        Form((_one, _power(i, j)), ("1", f"n^{i:.3g} log2(n)^{j}"))
        for i in EXPONENTS for j in LOGS if (i, j) != (0.0, 0)
    ),
)  # fmt: skip


def alpha_beta(strong: bool) -> Law:
    """Compute and an allreduce, its latency that of a ring or of a tree, none of it or that of two workers hidden."""
    if strong:
        forms = [Form((_one, _others, _times_n(term)), ("1", "n-1", f"n ({name})")) for name, term in LATENCIES.items()]
    else:
        forms = [Form((_one, term, _bytes), ("1", name, "(n-1)/n")) for name, term in LATENCIES.items()]
        forms += [
            Form((_one, _beyond_two(term), _beyond_two(_bytes)), ("1", f"[{name}, from 2]", "[(n-1)/n, from 2]"))
            for name, term in LATENCIES.items()
        ]
    return Law("alpha-beta", tuple(forms))


def laws(strong: bool) -> tuple[Law, ...]:
    """All that are compared."""
    return (alpha_beta(strong), AMDAHL, USL, EXTRA_P)
