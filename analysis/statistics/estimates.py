"""Estimates that are products, ratios or partly unknown, and the interval width that a study asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from analysis.frames import configurations
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow, bounded
from scaling_study.stats.intervals import welch_satterthwaite


@dataclass(frozen=True)
class LogEstimate:
    """A positive quantity that is known only so well. `below`, `above`: standard errors of `log` on either side, which
    differ where values are censored; infinite: that side is open, nan: nothing is known.

    Errors of independent ones add up in squares, side by side (MOVER: Zou and Donner, Stat. Med. 27, 2008), with the
    degrees of freedom of Welch and Satterthwaite.
    """

    log: float
    below: float = 0.0
    above: float = 0.0
    freedom: float = math.inf

    @property
    def value(self) -> float:
        return math.exp(self.log)

    def bounds(self, confidence: float = 0.95) -> tuple[float | None, float | None]:
        """None where a side is open or unknown."""
        quantile = float(stats.t.ppf(0.5 + confidence / 2, self.freedom))
        low, high = self.log - quantile * self.below, self.log + quantile * self.above
        return (math.exp(low) if math.isfinite(low) else None), (math.exp(high) if math.isfinite(high) else None)

    def __mul__(self, other: LogEstimate) -> LogEstimate:
        below, above = math.hypot(self.below, other.below), math.hypot(self.above, other.above)
        return LogEstimate(self.log + other.log, below, above, _freedom(self, other))

    def __pow__(self, power: float) -> LogEstimate:
        below, above = (self.below, self.above) if power >= 0 else (self.above, self.below)
        return LogEstimate(power * self.log, abs(power) * below, abs(power) * above, self.freedom)

    def __truediv__(self, other: LogEstimate) -> LogEstimate:
        return self * other**-1


def columns_of(name: str, estimate: LogEstimate | None) -> dict[str, Any]:
    """`name`, `name_low` and `name_high` -> the value and its 95 % interval; None of what is not known."""
    return bounded(name, *((estimate.value, *estimate.bounds()) if estimate else (None, None, None)))


def exactly(value: float) -> LogEstimate:
    return LogEstimate(math.log(value))


def of_censored(mean: CensoredMean) -> LogEstimate | None:
    """None where no mean is claimed; of one without an interval, the errors are unknown."""
    if mean.mean is None:
        return None
    freedom = mean.known + mean.censored - 1
    if freedom < 1:
        return LogEstimate(math.log(mean.mean), math.nan, math.nan)
    return between(mean.mean, mean.low, mean.high, freedom)


def between(value: float, low: float | None, high: float | None, freedom: float) -> LogEstimate:
    """From a 95 % interval with these degrees of freedom; a bound that is None, or a lower one of 0, is open."""
    quantile = float(stats.t.ppf(0.975, freedom))
    below = (math.log(value) - math.log(low)) / quantile if low else math.inf
    above = (math.log(high) - math.log(value)) / quantile if high is not None else math.inf
    return LogEstimate(math.log(value), max(0.0, below), max(0.0, above), freedom)


def of_values(values: Sequence[float]) -> LogEstimate:
    """The geometric mean of values above 0, with Student's t on their logarithms; of one the errors are unknown."""
    logs = np.log(np.asarray(values, dtype=float))
    error = float(stats.sem(logs)) if len(logs) > 1 else math.nan
    return LogEstimate(float(logs.mean()), error, error, max(1.0, len(logs) - 1.0))


def _freedom(*parts: LogEstimate) -> float:
    def variance(part: LogEstimate) -> float:
        sides = [side**2 for side in (part.below, part.above) if math.isfinite(side)]
        return sum(sides) / len(sides) if sides else 0.0

    unsure = [(variance(part), part.freedom) for part in parts if variance(part) > 0]
    if all(math.isinf(freedom) for _, freedom in unsure):
        return math.inf
    return float(welch_satterthwaite([v for v, _ in unsure], [f for _, f in unsure]))


# Means of values known only to lie between two bounds, as what a target takes is known between two evaluations.
#
# Logarithms are normal around a centre. Of each only the probability of lying between its bounds counts (Tobin,
# Econometrica 1958; rounded normal data: Heitjan, Stat. Sci. 4, 1989). The log likelihood is concave in centre / spread
# and 1 / spread (Burridge, J. R. Stat. Soc. B 43, 1981), so Newton's method finds its maximum. An interval holds each
# centre whose profile likelihood is not too low: as low as at the ends of Student's interval, where all is exact.

FEWEST = 2  # values with an upper bound, below which no interval is claimed
NARROWEST = 1e-4  # of a logarithm: what is known exactly is taken to be known to a hundredth of a per cent
LEAST_SPREAD, MOST_SPREAD = 1e-3, 50.0  # of logarithms
MOST_ROUNDS, MOST_HALVINGS, CONVERGED = 60, 12, 1e-9
FIRST_REACH = 0.01 * 2.0 ** np.arange(11)  # of a logarithm, in which a bound is looked for; farther ones are open
REFINED, PARTS = 3, 9
Values = NDArray[np.float64]


@dataclass(frozen=True)
class CensoredMean:
    """Geometric mean and 95 % interval; None where they cannot be told. `known`: values with an upper bound."""

    known: int
    censored: int
    mean: float | None
    low: float | None
    high: float | None


def censored_mean(after: Sequence[float], by: Sequence[float], confidence: float = 0.95) -> CensoredMean:
    """The geometric mean of log-normal values, each larger than its `after` and at most its `by`.

        reached between 10 and 12 s, 12 and 15 s; stopped at 40 s          after = 10, 12, 40   by = 12, 15, inf

    `after` 0 and `by` infinite are open, equal ones exact. Where all are exact the interval is Student's t on their
    logarithms, else that of the profile likelihood.
    """
    low, high = log_bounds(after, by)
    told = np.isfinite(low) | np.isfinite(high)
    low, high = low[told], high[told]
    total, known = len(low), int(np.isfinite(high).sum())
    counts = known, total - known
    if total == known == 1 and np.isfinite(low[0]):
        return CensoredMean(*counts, math.exp((low[0] + high[0]) / 2), None, None)
    if known < FEWEST:
        return CensoredMean(*counts, None, None, None)
    quantile = float(stats.t.ppf(0.5 + confidence / 2, total - 1))
    if np.array_equal(low, high):
        mean, half = float(low.mean()), float(stats.sem(low)) * quantile
        return CensoredMean(*counts, math.exp(mean), math.exp(mean - half), math.exp(mean + half))
    low, high = widened(low, high)
    centre, spread, cost = likeliest(low[None], high[None])
    best, least = float(centre[0]), float(cost[0])
    if low.max() < high.min():  # one value may be all of them
        best, least = (low.max() + high.min()) / 2 if np.isfinite(low).any() else float(high.min()), 0.0
    bounds = ends(low[None], high[None], np.array([best]), least + student_deviance(quantile, total, total - 1) / 2)
    under, over = (float(bound[0]) for bound in bounds)
    told_at_all = math.isfinite(low.max()) and spread[0] < 0.9 * MOST_SPREAD
    return CensoredMean(
        *counts,
        math.exp(best) if told_at_all else None,
        math.exp(under) if told_at_all and math.isfinite(under) else None,
        math.exp(over) if math.isfinite(over) else None,
    )


def log_bounds(after: Sequence[float], by: Sequence[float]) -> tuple[Values, Values]:
    """Logarithms, -inf of 0."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(after, dtype=float)), np.log(np.asarray(by, dtype=float))


def widened(low: Values, high: Values) -> tuple[Values, Values]:
    """Bounds no nearer to each other than NARROWEST."""
    exact = high - low < NARROWEST
    return np.where(exact, high - NARROWEST / 2, low), np.where(exact, high + NARROWEST / 2, high)


def student_deviance(quantile: float, values: int, freedom: float) -> float:
    """How far the deviance of a centre of normal `values` is above the least where Student's t is at `quantile`."""
    return values * math.log1p(quantile**2 / freedom)


def likeliest(low: Values, high: Values, centre: Values | None = None) -> tuple[Values, Values, Values]:
    """(centre, spread, minus the log likelihood), each (k,), that fit best with the bounds in each row of `low` and
    `high`, (k, n) logarithms with low < high and one of them finite; `centre`: (k,), where it is given."""
    finite = np.isfinite(low), np.isfinite(high)
    some = np.where(finite[0], np.where(finite[1], 0.5 * (np.where(finite[0], low, 0) + high), low), high)
    origin = some.mean(axis=1) if centre is None else centre
    low, high = low - origin[:, None], high - origin[:, None]
    most, least = 1 / LEAST_SPREAD, 1 / MOST_SPREAD
    precise = np.clip(1 / (np.sqrt(((some - origin[:, None]) ** 2).mean(axis=1)) + 0.05), least, most)  # 1 / spread
    shift = np.zeros(len(low))  # centre / spread
    at = _likelihood(low, high, shift, precise)
    going = np.arange(len(low))
    for _ in range(MOST_ROUNDS):
        now, a, b, ours, slope = shift[going], low[going], high[going], precise[going], at[:, going]
        step, growth = _newton(slope, ours >= most, centre is None)
        nearest = np.clip(ours + growth, np.maximum(ours / 5, least), np.minimum(ours * 5, most))
        share = np.divide(nearest - ours, growth, out=np.ones_like(growth), where=growth != 0)
        share = np.nan_to_num(np.minimum(share, 1.0))
        for _ in range(MOST_HALVINGS):
            new = _likelihood(a, b, now + share * step, ours + share * growth)
            worse = ~(new[0] >= slope[0] - 1e-12)
            if not worse.any():
                break
            share = np.where(worse, share / 4, share)
        better = ~worse
        kept = going[better]
        shift[kept], precise[kept] = (now + share * step)[better], (ours + share * growth)[better]
        at[:, kept] = new[:, better]
        going = going[better & (new[0] - slope[0] > CONVERGED)]
        if not len(going):
            break
    return origin + shift / precise, 1 / precise, -at[0]


def _newton(at: Values, stuck: Any, free: bool) -> tuple[Values, Values]:
    """Steps of centre / spread and of 1 / spread, (k,) each. `stuck`: (k,), whose spread can be no smaller; not
    `free`: the centre is given."""
    _, by_shift, by_precise, curved, mixed, curved_precise = at
    if not free:
        return np.zeros_like(by_shift), -by_precise / (curved_precise - 1e-10)
    ridge = 1e-10 * (1 - curved - curved_precise)
    curved, curved_precise = curved - ridge, curved_precise - ridge
    whole = curved * curved_precise - mixed**2
    step, growth = (
        (mixed * by_precise - curved_precise * by_shift) / whole,
        (mixed * by_shift - curved * by_precise) / whole,
    )
    held = stuck & (growth > 0)
    return np.where(held, -by_shift / curved, step), np.where(held, 0.0, growth)


def _likelihood(low: Values, high: Values, shift: Values, precise: Values) -> Values:
    """(6, k): the log likelihood, its gradient in `shift` and `precise`, and its three second derivatives."""
    a, b = (bound * precise[:, None] - shift[:, None] for bound in (low, high))
    right = a > 0  # taken from the other tail, which does not round to 1
    upper = special.log_ndtr(np.where(right, -a, b))
    log = upper + np.log(-np.expm1(np.minimum(special.log_ndtr(np.where(right, -b, a)) - upper, -1e-300)))
    of_a, of_b = (np.exp(-0.5 * (z * z + math.log(2 * math.pi)) - log) for z in (a, b))
    a, b, low, high = (np.where(np.isfinite(values), values, 0.0) for values in (a, b, low, high))
    in_b, in_a, mixed = -b * of_b - of_b**2, a * of_a - of_a**2, of_a * of_b
    parts = (
        log,
        of_a - of_b,
        high * of_b - low * of_a,
        in_b + 2 * mixed + in_a,
        -(high * in_b + (high + low) * mixed + low * in_a),
        high**2 * in_b + 2 * high * low * mixed + low**2 * in_a,
    )
    return np.stack([part.sum(axis=1) for part in parts])


def ends(low: Values, high: Values, centre: Values, most: float) -> tuple[Values, Values]:
    """The lowest and the highest centres, (k,) each, whose cost by likeliest() is at most `most`, which that of
    `centre`, (k,), is; infinite where they are farther than FIRST_REACH."""
    rows, sides = len(low), np.array([-1.0, 1.0])

    def beyond(reach: Values) -> Values:
        """By how much the cost is above `most`; `reach`: (2, k, g) distances from the centre, on both sides."""
        places = (centre[:, None] + sides[:, None, None] * reach).reshape(-1)
        again = np.broadcast_to(np.arange(rows)[:, None], reach.shape).reshape(-1)
        return (likeliest(low[again], high[again], places)[2] - most).reshape(reach.shape)

    def around(reach: Values) -> tuple[Values, Values, Values]:
        """(2, k): the farthest distance before the first one that is beyond, that one, and the share to go."""
        over = beyond(reach)
        first = np.maximum((over > 0).argmax(axis=2), 1)[:, :, None]
        (a, b), (below, above) = (
            (np.take_along_axis(values, first - 1, 2)[:, :, 0], np.take_along_axis(values, first, 2)[:, :, 0])
            for values in (reach, over)
        )
        share = np.divide(-below, above - below, out=np.zeros_like(below), where=above > below)
        return a, b, np.where((over > 0).any(axis=2), np.clip(share, 0.0, 1.0), np.inf)

    a, b, share = around(np.broadcast_to(np.array([0.0, *FIRST_REACH]), (2, rows, len(FIRST_REACH) + 1)))
    shut = np.isfinite(share)
    for _ in range(REFINED):
        a, b, share = around(np.linspace(a, b, PARTS, axis=2))
    low_end, high_end = centre + sides[:, None] * np.where(shut, a + np.nan_to_num(share, posinf=0.0) * (b - a), np.inf)
    return low_end, high_end


class Width(NamedTuple):
    """The interval of one measured configuration: in rounds of its ratio to the baseline, else of its throughput.
    `half` is relative, nan where no interval is claimed. `repeats_needed` would bring it to `target_interval`."""

    row: ConfigurationRow
    half: float
    of_ratio: bool
    repeats_needed: int | None


@once
def widths(results: Results) -> list[Width]:
    """The widths of all measured configurations, in their order, without baselines that others are held against."""
    by_id, target = {row["configuration"]: row for row in results.rows}, results.study.target_interval
    ratios: dict[str, Width] = {}
    for row in results.rows:
        base = by_id.get(row["baseline"] or "", row)
        if base is not row and not math.isnan(row["speedup"]) and (ratio := configurations.launches_ratio(row, base)):
            half, needed = ratio.relative_half_width, configurations.needed(row, base, target)
            ratios[row["configuration"]] = Width(row, math.nan if half is None else half, True, needed)
    bases = {width.row["baseline"] for width in ratios.values()}
    return [
        ratios.get(name) or Width(row, row["relative_half_width"], False, row["repeats_needed"])
        for name, row in by_id.items()
        if row["n"] and name not in bases
    ]


def said_of(widths: list[Width]) -> str:
    """Words that follow `intervals`: ` of ratios to the baseline`; empty for throughputs."""
    of_ratio = [width.of_ratio for width in widths]
    if not any(of_ratio):
        return ""
    return " of ratios to the baseline" + ("" if all(of_ratio) else " (of throughputs where there is none)")
