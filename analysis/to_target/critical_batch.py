"""The critical batch size, measured directly: what a larger batch needs in samples (Shallue et al., arXiv 1811.03600).

    steps(B) = Smin (1 + Bcrit / B)        samples(B) = Smin (B + Bcrit)

(McCandlish et al., arXiv 1812.06162, eq. 2.11), fitted to every seed by maximum likelihood. Samples are log-normal
around the curve with one spread at all batch sizes; of a seed that never reached the target only the probability of
needing more than it got counts. Intervals are of the profile likelihood. What the curve misses widens them, as it adds
to the spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.log_estimates import LogEstimate

PARAMETERS = 2
BEYOND = 1000.0  # how far below the smallest and above the largest batch a critical one is looked for
POINTS = 801
MOST_ROUNDS, CONVERGED = 2000, 1e-7
LEAST_SIGMA = 1e-6
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Needed:
    """Samples that one seed needed at one global batch; `censored`: it was stopped before, after so many."""

    batch: int
    seed: int
    samples: float
    censored: bool = False


@dataclass(frozen=True)
class Curve:
    """The fit. `critical` in samples, None where it lies beyond what the batches can tell: then one of its 95 % bounds
    may still stand. `steps`: Smin."""

    batches: tuple[int, ...]
    seeds: int
    critical: float | None
    low: float | None
    high: float | None
    steps: float | None
    logs: Values  # (points,) of candidates for the critical batch
    smallest: Values  # (points,) log Smin that fits best with each
    half: Values  # (points,) how far from it the data let it be; nan: not with this candidate at all
    best: int
    freedom: float

    def samples(self, batch: float) -> LogEstimate:
        """Needed at `batch`, with what the fit leaves open."""
        at = self.smallest + np.log(batch + np.exp(self.logs))
        low, high = float(np.nanmin(at - self.half)), float(np.nanmax(at + self.half))
        quantile, log = float(stats.t.ppf(0.975, self.freedom)), float(at[self.best])
        return LogEstimate(log, (log - low) / quantile, (high - log) / quantile, self.freedom)


def fit(needed: Sequence[Needed]) -> Curve | str:
    """Of one recipe and target; or why there is none."""
    known = [one for one in needed if not one.censored]
    batches = sorted({one.batch for one in known})
    if len(batches) < PARAMETERS:
        return f"the target was reached at {len(batches)} global batch size{'s' * (len(batches) != 1)}, not at two"
    freedom = len(known) - PARAMETERS
    if freedom < 1:
        return f"{len(known)} seeds reached the target: too few for an interval"
    batch, log = np.array([float(one.batch) for one in needed]), np.log([one.samples for one in needed])
    censored = np.array([one.censored for one in needed])
    edges = math.log(batches[0] / BEYOND), math.log(batches[-1] * BEYOND)
    logs = np.linspace(*edges, POINTS)
    smallest, sigma, cost = _profile(batch, log, censored, logs)
    best = int(cost.argmin())
    deviance, total = 2 * (cost - cost[best]), len(needed)
    most = total * math.log1p(float(stats.t.ppf(0.975, freedom)) ** 2 / freedom)  # of least squares: the t interval
    room = np.expm1((most - deviance) / total)
    half = np.where(room >= 0, sigma * np.sqrt(np.maximum(room, 0.0) * total / len(known)), np.nan)
    inside = 0 < best < len(logs) - 1
    low, high = (_crossing(logs, deviance, most, best, side) for side in (-1, 1))
    return Curve(
        tuple(batches), len({one.seed for one in needed}), _vertex(logs, cost, best) if inside else None, low, high,
        math.exp(smallest[best]) if inside else None, logs, smallest, half, best, float(freedom),
    )  # fmt: skip


def _profile(batch: Values, log: Values, censored: NDArray[np.bool_], logs: Values) -> tuple[Values, Values, Values]:
    """(log Smin, spread, minus the log likelihood) that fit best with each candidate."""
    left = log - np.log(batch + np.exp(logs)[:, None])  # (points, n): log Smin of each seed alone
    if not censored.any():
        mean, sigma = left.mean(axis=1), np.maximum(left.std(axis=1), LEAST_SIGMA)
        return mean, sigma, len(log) * np.log(sigma)
    mean, sigma = left.mean(axis=1), np.maximum(left.std(axis=1), LEAST_SIGMA)
    known, bounds = left[:, ~censored], left[:, censored]
    for _ in range(MOST_ROUNDS):  # expectation maximisation (Dempster, Laird and Rubin, J. R. Stat. Soc. B 39, 1977)
        beyond = (bounds - mean[:, None]) / sigma[:, None]
        hazard = np.exp(stats.norm.logpdf(beyond) - stats.norm.logsf(beyond))
        expected = mean[:, None] + sigma[:, None] * hazard
        new = (known.sum(axis=1) + expected.sum(axis=1)) / len(log)
        off, centred = new - mean, known - new[:, None]
        squares = sigma[:, None] ** 2 * (1 + beyond * hazard) - 2 * off[:, None] * sigma[:, None] * hazard
        total = (centred**2).sum(axis=1) + (squares + off[:, None] ** 2).sum(axis=1)
        spread = np.maximum(np.sqrt(total / len(log)), LEAST_SIGMA)
        moved = float(np.max((abs(off) + abs(spread - sigma)) / spread))
        mean, sigma = new, spread
        if moved < CONVERGED:
            break
    squares = ((known - mean[:, None]) ** 2).sum(axis=1) / sigma**2 / 2
    tails = stats.norm.logsf((bounds - mean[:, None]) / sigma[:, None]).sum(axis=1)
    return mean, sigma, known.shape[1] * np.log(sigma) + squares - tails


def _vertex(logs: Values, cost: Values, best: int) -> float:
    """The critical batch at the bottom of the parabola through the best candidate and its neighbours."""
    before, at, after = cost[best - 1 : best + 2]
    bend = before - 2 * at + after
    shift = 0.5 * (before - after) / bend if bend > 0 else 0.0
    return math.exp(float(logs[best] + shift * (logs[1] - logs[0])))


def _crossing(logs: Values, deviance: Values, most: float, best: int, side: int) -> float | None:
    """Where the deviance rises above `most` on one side of the best; None where it does not."""
    place = best
    while deviance[place] <= most:
        place += side
        if not 0 <= place < len(logs):
            return None
    share = (most - deviance[place - side]) / (deviance[place] - deviance[place - side])
    return math.exp(float(logs[place - side] + side * share * (logs[1] - logs[0])))
