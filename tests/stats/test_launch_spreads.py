"""Spreads between launches that configurations share: what is common cancels, and intervals cover, by simulation.

How often each is simulated, and what may be seen of it: tests/simulations.py.
"""

from __future__ import annotations

import functools
import math
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import stdtrit
from simulations import Seen, times

from scaling_study.stats import launches
from scaling_study.stats.launches import LaunchSpread, fitted, of_ratio, spreads, variance_left

Values = NDArray[np.float64]
ONE, DRIFT = 0.02, 0.05  # relative spread between launches of one configuration by itself, and of all together
MOST_WIDTH, LEAST_COVERAGE = 1.3, 0.93


def test_what_is_common_to_a_launch_is_taken_away_also_where_some_were_not_measured() -> None:
    drift = np.array([0.0, 0.3, -0.2, 0.1])
    x = np.array([[1.0], [5.0], [2.0]]) + drift
    x[0, 1] = x[2, 3] = math.nan
    left, common = fitted(x)
    assert np.allclose(left[np.isfinite(x)], 0, atol=1e-9)
    assert np.isnan(left[0, 1]) and np.isnan(left[2, 3])
    assert np.allclose(common - common[0], drift - drift[0], atol=1e-9)


def test_one_that_is_alone_says_nothing() -> None:
    variances, freedoms = variance_left(fitted(np.array([[1.0, 2.0, 4.0]]))[0])
    assert (variances.tolist(), freedoms.tolist()) == ([0.0], [0.0])
    (only,) = spreads([[1.0, 2.0, 4.0]], ["a"])
    assert of_ratio(only, only, together=False) == (0.0, 0.0)


def test_processes_add_to_a_ratio_between_them_only() -> None:
    one = LaunchSpread(0.01**2, 20.0, 0.03**2, 4.0, members=4)
    within, freedom_within = of_ratio(one, one, together=True)
    between, freedom_between = of_ratio(one, one, together=False)
    assert within == pytest.approx(2 * 0.01**2)
    assert between == pytest.approx(2 * 0.03**2 + 2 * 0.01**2 * 3 / 4)
    assert 4 < freedom_between < freedom_within == pytest.approx(40)


def drawn(
    rng: np.random.Generator, sizes: tuple[int, ...], count: int, processes: float, kind: str
) -> tuple[Values, Values]:
    """(m, count) logs of configurations whose true ratios are 1, and each one's own true spread, (m,)."""
    if kind == "autocorrelated":
        common = np.repeat(processes * rng.standard_normal((len(sizes), count)), sizes, axis=0)
        return common + in_rounds(rng, sum(sizes), count), np.full(sum(sizes), spread_in_rounds())

    def noise(*shape: int) -> Values:
        return rng.standard_t(4, shape) / math.sqrt(2) if kind == "heavy" else rng.standard_normal(shape)

    groups = np.repeat(np.arange(len(sizes)), sizes)
    own = ONE * np.exp(0.5 * rng.standard_normal(len(groups))) if kind == "unlike" else np.full(len(groups), ONE)
    common = DRIFT * noise(count) + processes * noise(len(sizes), count)[groups]
    return common + own[:, None] * noise(len(groups), count), own


def in_rounds(rng: np.random.Generator, m: int, count: int) -> Values:
    """(m, count) means over six rounds each, on a machine that wanders from block to block, where every configuration
    also wanders by itself from round to round, and has its blocks anywhere in a round."""
    rounds = 6
    machine = DRIFT * wandering(rng, (count * rounds * m,), 0.98).reshape(count, rounds, m)
    places = rng.permuted(np.broadcast_to(np.arange(m), (count, rounds, m)), axis=2)
    own = ONE * wandering(rng, (m, count, rounds), 0.6)
    return np.asarray((np.take_along_axis(machine, places, axis=2).transpose(2, 0, 1) + own).mean(axis=2))


def wandering(rng: np.random.Generator, shape: tuple[int, ...], kept: float) -> Values:
    """Autoregressive along the last axis, of variance 1; `kept`: of one value in the next."""
    noise = rng.standard_normal(shape)
    noise[..., 1:] *= math.sqrt(1 - kept**2)
    return np.asarray(lfilter([1.0], [1.0, -kept], noise, axis=-1))


@functools.cache
def spread_in_rounds() -> float:
    """Of one configuration from launch to launch, beside what is common to all."""
    left, _ = fitted(in_rounds(np.random.default_rng(1), 20, 4_000))
    return math.sqrt(float(variance_left(left)[0].mean()))


@pytest.mark.parametrize("kind", ["normal", "heavy", "unlike", "autocorrelated"])
@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize(("together", "processes"), [(True, 0.027), (False, 0.0), (False, 0.027)])
def test_intervals_of_ratios_cover_and_are_narrow(kind: str, count: int, together: bool, processes: float) -> None:
    """Of a study such as the default one: three groups of 4, 8 and 8 configurations. `processes`: what a launch does
    to a group, relative. Widths are over those of whoever knows all spreads."""
    sizes, rng, covered, studies = (4, 8, 8), np.random.default_rng(31), 0, times(100, 5_000)
    widths, groups = [], np.repeat(np.arange(3), sizes)
    chosen = [(a, b) for a, b in combinations(range(20), 2) if (groups[a] == groups[b]) == together]
    for _ in range(studies):
        logs, own = drawn(rng, sizes, count, processes, kind)
        found = spreads(logs, groups.tolist())
        a, b = chosen[int(rng.integers(len(chosen)))]  # one a study: pairs of a study are no independent simulations
        variance, freedom = of_ratio(found[a], found[b], together)
        half = float(stdtrit(freedom, 0.975)) * math.sqrt(variance / count)
        covered += abs(logs[a].mean() - logs[b].mean()) <= half
        true = own[a] ** 2 + own[b] ** 2 + (0 if together else 2 * processes**2)
        widths.append(half / (1.96 * math.sqrt(true / count)))
    print(f"{kind}, {count} launches: {Seen(covered, studies)}, width {np.mean(widths):.2f}")
    assert Seen(covered, studies).keeps(least=LEAST_COVERAGE)
    assert np.mean(widths) <= MOST_WIDTH


@pytest.mark.parametrize(("count", "least"), [(3, 0.89), (10, 0.92)])
def test_a_group_that_is_noisier_than_the_others_is_known_to_be(count: int, least: float) -> None:
    """What launches do to one of three groups alone: pooled, its spread would be too small by far."""
    sizes, rng, covered, studies = (4, 8, 8), np.random.default_rng(7), 0, times(100, 5_000)
    groups = np.repeat(np.arange(3), sizes)
    for _ in range(studies):
        logs, _ = drawn(rng, sizes, count, 0.0, "normal")
        logs[groups == 2] += 0.05 * rng.standard_normal(count)
        found = spreads(logs, groups.tolist())
        variance, freedom = of_ratio(found[0], found[-1], together=False)
        half = float(stdtrit(freedom, 0.975)) * math.sqrt(variance / count)
        covered += abs(logs[0].mean() - logs[-1].mean()) <= half
    print(f"one noisy group, {count} launches: {Seen(covered, studies)}")
    assert Seen(covered, studies).keeps(least=least)


def test_noise_is_estimated_where_it_is() -> None:
    rng = np.random.default_rng(5)
    logs, _ = drawn(rng, (4, 8, 8), 200, 0.027, "normal")
    found = spreads(logs, np.repeat(np.arange(3), (4, 8, 8)).tolist())
    assert math.sqrt(found[0].variance) == pytest.approx(ONE, rel=0.1)
    assert math.sqrt(found[0].processes) == pytest.approx(math.hypot(0.027, ONE / math.sqrt(6)), rel=0.2)
    assert [found[at].members for at in (0, 4)] == [4, 8]
    assert launches.total([(1.0, 2.0), (1.0, 0.0)]) == (0.0, 0.0)
