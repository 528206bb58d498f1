"""Scaling laws over worker counts: families of configurations, laws, and their fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.frames import results as series
from analysis.frames.configurations import BATCH_KEYS, KEYS, known, value_of, values, values_of
from analysis.frames.results import Results, once
from analysis.frames.row_types import ConfigurationRow
from scaling_study.frameworks import FRAMEWORKS

# Least squares with coefficients that are not below zero, exactly, for few coefficients and many fits at once.
#
# The best such fit leaves some coefficients at zero and is the plain least-squares fit of the others (Lawson and
# Hanson,
# Solving Least Squares Problems, 1974). Of three coefficients there are seven choices of those others: all are tried,
# for
# all designs and all right-hand sides together, which is what a bootstrap needs.

Array = NDArray[np.float64]


def solve(designs: Array, targets: Array) -> tuple[Array, Array]:
    """(coefficients (designs, targets, k) >= 0, sums of squares (designs, targets)) of the best fits of designs
    (designs, m, k) to targets (targets, m)."""
    forms, _, k = designs.shape
    best = np.zeros((forms, len(targets), k))
    least = np.broadcast_to((targets**2).sum(axis=1), best.shape[:2]).copy()
    for size in range(1, k + 1):
        for chosen in combinations(range(k), size):
            part = designs[:, :, chosen]
            solutions = targets @ np.linalg.pinv(part).transpose(0, 2, 1)  # (designs, targets, size)
            squares = ((targets - solutions @ part.transpose(0, 2, 1)) ** 2).sum(axis=2)
            better = (solutions >= 0).all(axis=2) & (squares < least)
            whole = np.zeros_like(best)
            whole[:, :, chosen] = solutions
            least, best = np.where(better, squares, least), np.where(better[:, :, None], whole, best)
    return best, least


# Scaling laws, all as one thing: worker-seconds of a sample, a sum of terms that only grow with n workers.
#
#     w(n) = n / throughput(n) = sum of coefficients x terms,   coefficients >= 0
#
#     law           weak scaling (batch of a worker fixed)         strong scaling (global batch fixed)
#     alpha-beta    1, latency(n), (n-1)/n                         1, n-1, n latency(n)
#     Amdahl        1, n-1                                         the same
#     USL           1, n-1, n (n-1)                                the same
#     Extra-P       1, n^i log2(n)^j, the best i and j             the same
#
# alpha-beta: a step computes, then reduces b bytes in 2 (n-1) messages of alpha (a ring; 2 log2 n for a tree) and
# 2 (n-1)/n b beta; or, where computing hides what two workers send, only what is more than that. Under strong scaling
# the
# bytes' (n-1)/n cannot be told from what of computing is not divided, so both are one term; with a ring's latency this
# is
# the USL. Amdahl (AFIPS 30, 1967), as throughput n / (1 + s (n-1)): s is what cannot be spread. USL: Gunther's
# universal
# scalability law, with n (n-1) for coherence. Extra-P (Calotoiu et al., SC 2013) looks for one term of such a form; i
# and
# j are chosen anew whenever it is fitted.
#
# Nothing here gets better with workers: what is superlinear is no law's, and stays in the residuals.

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


# Configurations that differ in nothing but their workers: what a scaling law is fitted to.
#
# Under weak scaling the batch of a worker is the same, under strong scaling the global one. With one worker there is
# no
# allreduce, so that run belongs to every precision on the wire; a framework without one of its own takes the study's
# baseline. Pipelines are left out: there other workers are another cut of the model.

SPREAD = ("workers", "hosts", "oversubscribe", "launcher", "controller")
Row = ConfigurationRow


@dataclass(frozen=True)
class Family:
    """`rows`: one a worker count, ascending, all comparable. `left_out`: why others were not taken, in words."""

    label: str
    rows: tuple[Row, ...]
    strong: bool
    left_out: tuple[str, ...]

    @property
    def model(self) -> str:
        return str(self.rows[0]["model"])

    @property
    def about(self) -> Row:
        """The configuration of most workers, for what they have in common."""
        return self.rows[-1]

    @property
    def workers(self) -> Vector:
        return np.array([float(row["workers"]) for row in self.rows])

    @property
    def rates(self) -> Vector:
        """Samples a second, means over repeats."""
        return np.array([float(row["samples_per_second"]) for row in self.rows])

    @property
    def repeats(self) -> list[Vector]:
        """Samples a second of each repeat, count by count."""
        return [np.array(values(row)) for row in self.rows]


def families(results: Results) -> list[Family]:
    """Every family with more than one worker somewhere, in the order of the tables."""
    rows = sorted(results.rows, key=lambda row: (str(row["model"]), row["series_order"], row["batch"]))
    names = [name for name in results.series_keys if name not in series.MAIN_KEYS]
    held = results.study.batch_key
    alike = [key for key in KEYS if key not in (*SPREAD, *BATCH_KEYS)] + [held]
    lone = _Lone(rows, [key for key in alike if key != "allreduce"])
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if int(row["workers"]) > 1 and not _cuts(row):
            groups.setdefault(values_of(row, alike), []).append(row)
    families_of = []
    for group in groups.values():
        every = [*lone.of(group[0]), *group]
        left_out = [f"{int(row['workers'])} workers: {why}" for row in every if (why := _unfit(row))]
        counts: dict[int, Row] = {}
        for configuration in sorted(
            (configuration for configuration in every if not _unfit(configuration)), key=_hosts
        ):
            counts.setdefault(
                int(configuration["workers"]), configuration
            )  # on several placements: that on the fewest hosts
        if counts:
            kept = tuple(counts[count] for count in sorted(counts))
            families_of.append(
                Family(_label(group[0], names, held), kept, results.study.scaling == "strong", tuple(left_out))
            )
    return families_of


class _Lone:
    """The runs with one worker."""

    def __init__(self, rows: Sequence[Row], keys: Sequence[str]) -> None:
        self.keys = keys
        self.by_name = {str(row["configuration"]): row for row in rows if int(row["workers"]) == 1}
        self.alike: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.by_name.values():
            self.alike.setdefault(values_of(row, keys), []).append(row)

    def of(self, row: Row) -> list[Row]:
        """The framework's own, else the study's baseline of it."""
        own = self.alike.get(values_of(row, self.keys), [])
        if own and not all(_unfit(configuration) for configuration in own):
            return own
        base = self.by_name.get(str(row["baseline"])) if known(row["baseline"]) else None
        return own if base is None else [base]


def _unfit(row: Row) -> str:
    """Why a configuration says nothing of how the others scale; empty if it does."""
    if not row["n"]:
        return str(row["status"])
    return "oversubscribed" if row["oversubscribed"] else "not comparable" if row["not_comparable"] else ""


def _cuts(row: Row) -> bool:
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.cuts_model


def _hosts(row: Row) -> str:
    return str(row["hosts"]).rjust(20) if known(row["hosts"]) else ""


def _label(row: Row, names: list[str], held: str) -> str:
    """`horovod, fp32, batch 64`, with what else tells this study's configurations apart."""
    wire = [str(row["allreduce"])] if row["allreduce"] != "none" else []
    batch = f"{'global ' * (held == 'global_batch')}batch {int(value_of(row, held))}"
    return ", ".join([str(row["framework"]), *wire, batch, *series.words(row, names)])


# Every law on one family of worker counts, and how far each is off a count that it has not seen.
#
#     fitted on     1 2 4 . 16 32        left out: 8     held-out error = predicted / measured - 1, each count in turn
#
# The law with the smallest mean error is the best; laws whose error is larger by no more than the measurements' own
# noise
# are not told apart from it. With fewer than four counts a law of three coefficients would be tested on nothing, and
# none
# is claimed.
#
# Errors are relative and weigh alike at every count. `misfit` is what the residuals have beyond the noise. Where even
# the
# laws that are kept miss the counts they were fitted to (a link that all share and that is full is none of them),
# nothing
# is said of others.

FEWEST_COUNTS = 4
LACK_OF_FIT, MOST_MISFIT = 1e-3, 0.05  # p of the F test, and the relative misfit, from which no law is believed
TIE = 1e-18  # of a sum of squared relative residuals: what rounding makes of two forms that fit alike


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
        (fitted(law, workers, spent, noise) for law in laws(family.strong)), key=lambda candidate: candidate.error
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
