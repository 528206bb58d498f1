"""Scaling laws over worker counts: which configurations form a family, the laws, their fits and held-out errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from analysis.frames import results as series
from analysis.frames.configurations import BATCH_KEYS, KEYS, known, unlike_work, values, values_of
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow as Row
from analysis.frames.rows import grouped
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.stats.intervals import student_t

# A law gives the worker-seconds of a sample as a sum of terms in n, the number of workers:
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
# the (n-1)/n of the bytes cannot be told from the part of computing that is not divided, so both are one term. Amdahl:
# AFIPS 30, 1967. USL: Gunther's universal scalability law. Extra-P: Calotoiu et al., SC 2013; i and j are chosen anew
# for each fit. No term falls with n: superlinear speed-up fits no law, and stays in the residuals.

Vector = NDArray[np.float64]
Form = tuple[str, ...]  # names of TERMS


EXPONENTS = (0.0, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 1.0, 4 / 3, 3 / 2, 2.0)
POWERS = {f"n^{i:.3g} log2(n)^{j}": (i, j) for i in EXPONENTS for j in (0, 1, 2) if (i, j) != (0.0, 0)}
TERMS: dict[str, Callable[[Vector], Vector]] = {
    "1": np.ones_like,
    "n-1": lambda n: n - 1,
    "log2 n": np.log2,
    "(n-1)/n": lambda n: (n - 1) / n,
    "n (n-1)": lambda n: n * (n - 1),
    "n (log2 n)": lambda n: n * np.log2(n),
    "[n-1, from 2]": lambda n: np.maximum(0.0, n - 2),  # more than with two workers, and none up to there
    "[log2 n, from 2]": lambda n: np.maximum(0.0, np.log2(n) - 1),
    "[(n-1)/n, from 2]": lambda n: np.maximum(0.0, (n - 1) / n - 1 / 2),
    **{name: lambda n, i=i, j=j: n**i * np.log2(n) ** j for name, (i, j) in POWERS.items()},  # type: ignore[misc]
}


@dataclass(frozen=True)
class Law:
    """A law is fitted in each of its forms; the one with the smallest residuals counts."""

    name: str
    forms: tuple[Form, ...]

    @property
    def coefficients(self) -> int:
        """The number of fitted coefficients. The choice of a form is not counted."""
        return len(self.forms[0])


AMDAHL = Law("Amdahl", (("1", "n-1"),))
USL = Law("USL", (("1", "n-1", "n (n-1)"),))
EXTRA_P = Law("Extra-P", tuple(("1", power) for power in POWERS))
WEAK_ALPHA_BETA = Law(
    "alpha-beta",
    (
        ("1", "n-1", "(n-1)/n"),
        ("1", "log2 n", "(n-1)/n"),
        ("1", "[n-1, from 2]", "[(n-1)/n, from 2]"),
        ("1", "[log2 n, from 2]", "[(n-1)/n, from 2]"),
    ),
)
STRONG_ALPHA_BETA = Law("alpha-beta", (("1", "n-1", "n (n-1)"), ("1", "n-1", "n (log2 n)")))


def design(form: Form, workers: Vector) -> Vector:
    """(counts, terms): the value of each term at each worker count."""
    return np.stack([TERMS[name](workers) for name in form], axis=1)


def solve(designs: Vector, targets: Vector) -> tuple[Vector, Vector]:
    """(coefficients (designs, targets, k) >= 0, sums of squares (designs, targets)) of the best fits of designs
    (designs, m, k) to targets (targets, m).

    The best fit without negative coefficients leaves some at zero and is the plain least-squares fit of the others
    (Lawson and Hanson, Solving Least Squares Problems, 1974). With few coefficients all choices are tried, for all
    designs and targets at once: a bootstrap makes thousands of fits, and scipy.optimize.nnls takes them one by one.
    """
    forms, _, k = designs.shape
    best = np.zeros((forms, len(targets), k))
    least = np.broadcast_to((targets**2).sum(axis=1), best.shape[:2]).copy()
    for size in range(1, k + 1):
        for chosen in itertools.combinations(range(k), size):
            part = designs[:, :, chosen]
            solutions = targets @ np.linalg.pinv(part).transpose(0, 2, 1)  # (designs, targets, size)
            squares = ((targets - solutions @ part.transpose(0, 2, 1)) ** 2).sum(axis=2)
            better = (solutions >= 0).all(axis=2) & (squares < least)
            whole = np.zeros_like(best)
            whole[:, :, chosen] = solutions
            least, best = np.where(better, squares, least), np.where(better[:, :, None], whole, best)
    return best, least


SPREAD = ("workers", "hosts", "oversubscribe", "launcher", "controller")


@dataclass(frozen=True)
class Family:
    """Configurations that differ in nothing but their workers. A run with one worker has no allreduce, so it belongs to
    the family of every precision on the wire; a framework without such a run takes the study's baseline. Pipelines are
    left out: more workers cut the model elsewhere.

    `rows`: one for each worker count, ascending, all comparable. `left_out`: reasons why others were not taken.
    Workers of one host and workers over several do not follow one law: from `fewest` to `most` a law of this family may
    be asked for.
    """

    label: str
    rows: tuple[Row, ...]
    strong: bool
    left_out: tuple[str, ...]
    fewest: int = 1
    most: int | None = None

    @property
    def model(self) -> str:
        return str(self.rows[0]["model"])

    @property
    def name(self) -> str:
        """`resnet18, horovod, fp32, batch 64`, with what else tells this study's configurations apart."""
        return f"{self.model}, {self.label}"

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
    computing = [key for key in alike if key != "allreduce"]
    sharing = {name for name, framework in FRAMEWORKS.items() if framework.shares_batches}
    single = [row for row in rows if int(row["workers"]) == 1]
    several_workers = [row for row in rows if int(row["workers"]) != 1 and row["framework"] not in sharing]
    alone = grouped(single, lambda row: values_of(row, computing))
    by_id = {str(row["configuration"]): row for row in single}
    found = []
    for group in grouped(several_workers, lambda row: values_of(row, alike)).values():
        first = group[0]
        own = alone.get(values_of(first, computing), [])
        base = by_id.get(str(first["baseline"]))
        base = None if base is None or unlike_work(first, base) else base
        every = [*(own if base is None or not all(map(_unfit, own)) else [base]), *group]
        left_out = tuple(f"{int(row['workers'])} workers: {why}" for row in every if (why := _unfit(row)))
        wire = [precision] if (precision := series.on_wire(first)) else []
        batch = f"{'global ' * (held == 'global_batch')}batch {int(first[held])}"
        words = [str(first["framework"]), *wire, batch, *series.words(first, names)]
        parts = _regimes([row for row in every if not _unfit(row)])
        for regime, rows_of_it in parts.items():
            counts: dict[int, Row] = {}
            for row in sorted(rows_of_it, key=hosts_of):
                counts.setdefault(int(row["workers"]), row)  # of several placements that on the fewest hosts
            if counts:
                kept = tuple(counts[count] for count in sorted(counts))
                several = [int(row["workers"]) for row in kept if hosts_of(row) > 1]
                room = max(counts) if len(parts) > 1 else host_room(kept[-1], results.study.machine)
                most = None if several or room is None else max(room, *counts)
                label = ", ".join([*words, *([regime] if regime else [])])
                strong = results.study.scaling == "strong"
                found.append(Family(label, kept, strong, left_out, min(several, default=1), most))
    return found


def hosts_of(row: Mapping[str, Any]) -> int:
    """1 where a trial asked for none."""
    return int(str(row["hosts"])) if known(row["hosts"]) else 1


def host_room(row: Row, machine: Mapping[str, Any]) -> int | None:
    """How many workers this machine has room for; None where it is not the only host, or unknown."""
    if known(row["hosts"]):
        return None
    if row["device"] == "cuda":
        return len(machine["gpus"]) if machine.get("gpus") is not None else None
    cores = machine.get("cores")
    share = int(row["cores_per_worker"]) if known(row["cores_per_worker"]) else 1
    return int(cores) // share if isinstance(cores, int) and share else None


def _regimes(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows inside a host and rows over hosts, apart where either could have a law; one worker belongs to both."""
    alone = [row for row in rows if int(row["workers"]) == 1]
    inside = [row for row in rows if hosts_of(row) == 1]
    over = [*alone, *(row for row in rows if hosts_of(row) > 1)]
    parts = {"inside a host": inside, "over hosts": over}
    if len(inside) == len(alone) or len(over) == len(alone) or all(_too_few(part) for part in parts.values()):
        return {"": list(rows)}
    return parts


def _too_few(rows: Sequence[Row]) -> bool:
    return len({int(row["workers"]) for row in rows}) < FEWEST_COUNTS


def _unfit(row: Row) -> str:
    """Why a configuration cannot be part of a law; empty if it can."""
    if not row["n"]:
        return str(row["status"])
    return "oversubscribed" if row["oversubscribed"] else "not comparable" if row["not_comparable"] else ""


# Each law is fitted to a family and judged by worker counts that it has not seen:
#
#     fitted on     1 2 4 . 16 32        left out: 8     held-out error = predicted / measured - 1, each count in turn
#
# The law with the smallest mean error is the best; laws whose error is larger by no more than the noise of the
# measurements are tied with it. With fewer than four counts a law of three coefficients would be tested on nothing.
# Where even the tied laws miss the counts that they were fitted to, nothing is said of other counts.

FEWEST_COUNTS = 4
TOO_FEW_EACH = f"inside a host and over hosts there are fewer than {FEWEST_COUNTS} worker counts each"
LACK_OF_FIT, MOST_MISFIT = 1e-3, 0.05  # p of the F test, and the relative misfit, from which no law is believed
TIE = 1e-18  # of a sum of squared relative residuals: what rounding makes of two forms that fit alike


@dataclass(frozen=True)
class Curves:
    """One law, fitted to each of several draws of the measurements. Called with worker counts, it gives the (draws,
    counts) worker-seconds of a sample."""

    law: Law
    form: NDArray[np.int64]  # (draws,) which of the law's
    coefficients: Vector  # (draws, k)
    squares: Vector  # (draws,) of relative residuals, their sum

    def __call__(self, workers: Vector) -> Vector:
        values = np.zeros((len(self.form), len(workers)))
        for index in np.unique(self.form):
            ours = self.form == index
            values[ours] = self.coefficients[ours] @ design(self.law.forms[index], workers).T
        return values


@dataclass(frozen=True)
class Fitted:
    """One law on one family. `held_out`: predicted / measured - 1 of the throughput, each count from the others."""

    law: Law
    curve: Curves  # of one draw: the measured means
    held_out: Vector
    misfit: float  # relative standard deviation that noise does not explain

    @property
    def error(self) -> float:
        """Mean of the held-out errors' sizes."""
        return float(np.abs(self.held_out).mean())

    def beyond(self, noise: RepeatNoise) -> float:
        """Relative standard deviation by which the law is to be expected off a count that it has not seen."""
        return max(self.misfit, math.sqrt(max(0.0, float((self.held_out**2).mean()) - noise.variance)))

    @property
    def formula(self) -> str:
        """`0.0012 + 3.1e-05 (n-1)` worker-seconds of a sample; terms that are nothing are left out."""
        form, values = self.law.forms[int(self.curve.form[0])], self.curve.coefficients[0]
        written = {"1": "", "n-1": " (n-1)"}
        terms = [
            f"{value:.3g}{written.get(name, f' {name}')}" for name, value in zip(form, values, strict=True) if value
        ]
        return " + ".join(terms) or "0"


@dataclass(frozen=True)
class RepeatNoise:
    """Noise of the measured means. `errors`: (counts,) relative standard errors, from the spread of all repeats
    together; None where no count has two repeats."""

    errors: Vector | None
    freedom: int

    @property
    def half_width(self) -> float:
        """Relative, of a 95 % interval of the typical mean; 0 where nothing is known."""
        return 0.0 if self.errors is None else student_t(0.95, self.freedom) * float(np.median(self.errors))

    @property
    def variance(self) -> float:
        """Mean square of the errors; 0 where nothing is known."""
        return 0.0 if self.errors is None else float((self.errors**2).mean())


@dataclass(frozen=True)
class LawComparison:
    """All laws on one family, the smallest held-out error first; the first `alike` are not told apart."""

    family: Family
    fits: tuple[Fitted, ...]
    alike: int
    noise: RepeatNoise

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
        for candidate in self.kept:
            freedom = len(self.family.workers) - candidate.law.coefficients
            if self.noise.errors is None or freedom < 1 or candidate.misfit <= MOST_MISFIT:
                return ""
            over_noise = float(candidate.curve.squares[0]) / freedom / max(self.noise.variance, TIE)
            if fdtrc(freedom, self.noise.freedom, over_noise) >= LACK_OF_FIT:  # the F test for lack of fit
                return ""
        return (
            f"the best of them, {self.best.law.name}, misses counts that were measured by {100 * self.best.misfit:.0f} "
            f"%, where a mean is known to ±{100 * self.noise.half_width:.1f} %"
        )


@dataclass(frozen=True)
class Declined:
    """A family to which no law is fitted, and why."""

    family: Family
    why: str


@once
def comparisons(results: Results) -> list[LawComparison | Declined]:
    """The comparison of every family of the study, in their order."""
    return [compare(family) for family in families(results)]


def compare(family: Family) -> LawComparison | Declined:
    """Every law, or why there is none."""
    workers = family.workers
    if len(workers) < FEWEST_COUNTS:
        counts = ", ".join(f"{count:.0f}" for count in workers)
        several = f"{len(workers)} worker counts ({counts})" if len(workers) > 1 else f"one worker count ({counts})"
        more = f"; left out: {'; '.join(family.left_out)}" if family.left_out else ""
        return Declined(family, f"{several}, and a law needs at least {FEWEST_COUNTS}{more}")
    placed = {hosts_of(row) > 1 for row in family.rows if int(row["workers"]) > 1}
    if len(placed) > 1:
        return Declined(family, f"workers of one host and workers over hosts follow no one law; {TOO_FEW_EACH}")
    spent, noise = workers / family.rates, noise_of(family.repeats)
    alpha_beta = STRONG_ALPHA_BETA if family.strong else WEAK_ALPHA_BETA
    fits = sorted(
        (fitted(law, workers, spent, noise) for law in (alpha_beta, AMDAHL, USL, EXTRA_P)), key=lambda fit: fit.error
    )
    alike = sum(fit.error <= fits[0].error + noise.half_width for fit in fits)
    return LawComparison(family, tuple(fits), alike, noise)


def fitted(law: Law, workers: Vector, spent: Vector, noise: RepeatNoise) -> Fitted:
    """One law on worker-seconds `spent` (counts,) of a sample."""
    curve = curves(law, workers, spent[None], spent)
    held_out = []
    for left in range(len(workers)):
        others = np.arange(len(workers)) != left
        seen = curves(law, workers[others], spent[None, others], spent[others])
        held_out.append(float(spent[left] / seen(workers[[left]])[0, 0]) - 1)
    freedom = len(workers) - law.coefficients
    misfit = math.sqrt(max(0.0, float(curve.squares[0]) / freedom - noise.variance)) if freedom > 0 else 0.0
    return Fitted(law, curve, np.array(held_out), misfit)


def curves(law: Law, workers: Vector, drawn: Vector, scale: Vector) -> Curves:
    """`drawn`: (draws, counts) worker-seconds; residuals are taken relative to `scale` (counts,)."""
    designs = np.stack([design(form, workers) for form in law.forms]) / scale[:, None]
    coefficients, squares = solve(designs, drawn / scale)
    form = (squares <= squares.min(axis=0) + TIE).argmax(axis=0)  # of forms that fit alike, the first
    every = np.arange(len(drawn))
    return Curves(law, form, coefficients[form, every], squares[form, every])


def noise_of(repeats: Sequence[Vector]) -> RepeatNoise:
    """The relative spread between repeats is taken to be the same at every count: with three of each, no count says
    much of its own."""
    centred = [repeat / repeat.mean() - 1 for repeat in repeats]
    freedom = sum(len(deviations) - 1 for deviations in centred)
    if freedom < 1:
        return RepeatNoise(None, 0)
    spread = math.sqrt(sum(float((deviations**2).sum()) for deviations in centred) / freedom)
    return RepeatNoise(np.array([spread / math.sqrt(len(deviations)) for deviations in centred]), freedom)
