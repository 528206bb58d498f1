"""Spreads between launches that configurations share: what is common cancels, and intervals cover, by simulation.

How often each is simulated, and what may be seen of it: tests/simulations.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import stdtrit
from simulations import LONG, Seen, times

from scaling_study.stats import launches
from scaling_study.stats.launches import LaunchSpread, fitted, of_ratio, spreads, variance_left

Values = NDArray[np.float64]
ONE, DRIFT = 0.02, 0.05  # relative spread between launches of one configuration by itself, and of all together
MOST_WIDTH, LEAST_COVERAGE = 1.3, 0.93
STUDENTS = 2.2  # as wide as intervals from known spreads are those of Student's t of three differences


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


def test_two_that_are_alone_know_no_more_than_their_own_differences() -> None:
    """The spread of their processes is of the very same launches: it adds no degrees of freedom."""
    logs = np.array([[0.0, 0.01, -0.01, 0.02], [0.005, -0.01, 0.01, 0.0]])
    own = (logs[0] - logs[1]).tolist()
    variance, freedom = of_ratio(*spreads(logs, ["a", "b"]), together=False, differences=own)
    assert (variance, freedom) == (pytest.approx(np.var(own, ddof=1)), pytest.approx(3))
    three = spreads(np.vstack([logs, [0.0, 0.02, 0.0, -0.01]]), ["a", "b", "c"])
    assert of_ratio(three[0], three[1], together=False, differences=own)[1] <= 6


@pytest.mark.parametrize("count", [3, 4, 6])
@pytest.mark.parametrize("groups", ["aa", "saa"], ids=["alone", "beside a baseline"])
def test_two_of_the_same_processes_know_no_more_than_their_own_differences(groups: str, count: int) -> None:
    """fp16 over fp32 in a study of nothing else: Student's t of the differences is exact, and there is nothing more."""
    logs = np.random.default_rng(2).normal(0, 0.02, (len(groups), count))
    own = (logs[-1] - logs[-2]).tolist()
    variance, freedom = of_ratio(*spreads(logs, list(groups))[-2:], together=True, differences=own)
    assert (variance, freedom) == (pytest.approx(np.var(own, ddof=1)), pytest.approx(count - 1))


@pytest.mark.parametrize("count", [3, 6])
def test_two_sets_of_processes_are_one_difference_whatever_they_measure(count: int) -> None:
    """All that a launch does, it does to all of a set: four configurations then tell as much as two do."""
    rng = np.random.default_rng(2)
    logs = np.repeat(rng.normal(0, 0.02, (2, count)), (2, 4), axis=0) + rng.normal(0, 1e-6, (6, count))
    found, own = spreads(logs, list("aabbbb")), (logs[0] - logs[2]).tolist()
    variance, freedom = of_ratio(found[0], found[2], together=False, differences=own)
    assert (variance, freedom) == (pytest.approx(np.var(own, ddof=1), rel=1e-3), pytest.approx(count - 1, rel=1e-3))


SMALL = ((2,), (3,), (4,), (1, 2), (2, 2), (1, 4), (4, 4), (2, 2, 2))


@pytest.mark.parametrize("processes", [0.0, 0.027])
@pytest.mark.parametrize("sizes", SMALL, ids=str)
def test_ratios_of_a_small_study_of_three_launches_are_covered(sizes: tuple[int, ...], processes: float) -> None:
    """Groups of so many configurations each; pairs of the same processes and of others are counted apart."""
    rng, studies, groups = np.random.default_rng(7), times(60, 6_000), np.repeat(np.arange(len(sizes)), sizes)
    pairs = list(combinations(range(len(groups)), 2))
    covered: dict[bool, list[bool]] = {}
    for _ in range(studies):
        logs, _ = drawn(rng, sizes, 3, processes, "normal")
        found = spreads(logs, groups.tolist())
        for together in {bool(groups[a] == groups[b]) for a, b in pairs}:
            alike = [(a, b) for a, b in pairs if (groups[a] == groups[b]) == together]
            a, b = alike[int(rng.integers(len(alike)))]
            variance, freedom = of_ratio(found[a], found[b], together, (logs[a] - logs[b]).tolist())
            half = float(stdtrit(freedom, 0.975)) * math.sqrt(variance / 3)
            covered.setdefault(together, []).append(bool(abs((logs[a] - logs[b]).mean()) <= half))
    seen = {together: Seen(sum(each), studies) for together, each in covered.items()}
    print(sizes, processes, {"same" if together else "others": str(each) for together, each in seen.items()})
    assert all(each.keeps(least=0.93) for each in seen.values()), seen


def test_a_sign_is_sure_at_99_percent() -> None:
    """Student's t with 2 degrees of freedom: 9.92."""
    assert launches.is_sure(0.0993, 1e-4, 2.0) and not launches.is_sure(-0.0991, 1e-4, 2.0)
    assert launches.is_sure(-0.05, 1e-4, 20.0) and not launches.is_sure(1.0, 1e-4, 0.0)


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
        variance, freedom = of_ratio(found[a], found[b], together, (logs[a] - logs[b]).tolist())
        half = float(stdtrit(freedom, 0.975)) * math.sqrt(variance / count)
        covered += abs(logs[a].mean() - logs[b].mean()) <= half
        true = own[a] ** 2 + own[b] ** 2 + (0 if together else 2 * processes**2)
        widths.append(half / (1.96 * math.sqrt(true / count)))
    print(
        f"{kind}, {count} launches: {Seen(covered, studies)}, width {np.median(widths):.2f}, mean {np.mean(widths):.2f}"
    )
    assert Seen(covered, studies).keeps(least=LEAST_COVERAGE)
    few = count == 3  # those that contradict the others are far wider
    assert np.median(widths) <= (1.1 * MOST_WIDTH if few else MOST_WIDTH)
    assert np.mean(widths) <= (0.8 * STUDENTS if few else MOST_WIDTH)


NOISY = ("nothing", "one configuration", "one model of a group", "a group", "a group and model at a time")


@pytest.mark.parametrize("count", [3, 6])
@pytest.mark.parametrize("noisy", NOISY)
def test_no_class_of_pairs_is_covered_in_less_than_92_percent(noisy: str, count: int) -> None:
    """Six groups of two models and two batch sizes; `noisy` differs from launch to launch by 5 or 6 %, all else by 2 %.

    Classes: pairs with and without a noisy one, of the same processes and of others. Student's t of three differences
    would be 1.8 times as wide as an interval from known spreads; pooled ones covered 74 to 91 % of the noisy classes.
    """
    rng, studies, groups = np.random.default_rng(1), times(60, 4_000), np.repeat(np.arange(6), 4)
    pairs = [(a, b) for a, b in combinations(range(24), 2)]
    covered: dict[tuple[bool, bool], list[bool]] = {}
    widths = []
    for _ in range(studies):
        logs, who, spread_of = planted(rng, noisy, count)
        found = spreads(logs, groups.tolist())
        for a, b in [*(pairs[at] for at in rng.choice(len(pairs), 40)), *(pairs[at] for at in rng.choice(90, 40))]:
            variance, freedom = of_ratio(found[a], found[b], bool(groups[a] == groups[b]), (logs[a] - logs[b]).tolist())
            half = float(stdtrit(freedom, 0.975)) * math.sqrt(variance / count)
            kind = bool(groups[a] == groups[b]), bool(who[a] or who[b])
            covered.setdefault(kind, []).append(bool(abs((logs[a] - logs[b]).mean()) <= half))
            widths.append(half / (1.96 * spread_of(a, b) / math.sqrt(count)))
    shares = {kind: np.mean(each) for kind, each in covered.items()}
    every = np.mean([one for each in covered.values() for one in each])
    print(f"{noisy}, {count} launches: {every:.3f}", {kind: f"{share:.3f}" for kind, share in shares.items()},
          f"width {np.median(widths):.2f}, mean {np.mean(widths):.2f}")  # fmt: skip
    least = 0.92 if LONG else 0.87  # pairs of a study are no independent simulations
    assert all(share >= least for share in shares.values()), shares
    assert 0.94 <= every <= 0.985


def planted(
    rng: np.random.Generator, noisy: str, count: int
) -> tuple[Values, NDArray[np.bool_], Callable[[int, int], float]]:
    """(24, count) logs whose true ratios are 1, which of them are noisy, and the true spread of a pair's ratio."""
    groups, models = np.repeat(np.arange(6), 4), np.tile([0, 0, 1, 1], 6)
    levels = np.stack([groups, 2 * groups + models, np.arange(24)])  # processes, those with one model, alone
    sizes = np.where(np.arange(3)[:, None] == 1, 0.0, np.full((3, 24), ONE))
    size = {"one configuration": (2, 1), "one model of a group": (2, 2), "a group": (0, 4)}
    level, members = size.get(noisy, (1, 2))
    who = (np.arange(24) < members) & (noisy != "nothing")
    sizes[level, who] = 0.06 if noisy == "a group" else 0.05
    parts = [rng.standard_normal((24, count))[places] * own[:, None] for places, own in zip(levels, sizes, strict=True)]

    def spread(a: int, b: int) -> float:
        apart = levels[:, a] != levels[:, b]
        return math.sqrt(float(((sizes[:, a] ** 2 + sizes[:, b] ** 2) * apart).sum()))

    return DRIFT * rng.standard_normal(count) + sum(parts), who, spread


def test_noise_is_estimated_where_it_is() -> None:
    rng = np.random.default_rng(5)
    logs, _ = drawn(rng, (4, 8, 8), 200, 0.027, "normal")
    found = spreads(logs, np.repeat(np.arange(3), (4, 8, 8)).tolist())
    assert math.sqrt(found[0].variance) == pytest.approx(ONE, rel=0.1)
    assert math.sqrt(found[0].processes) == pytest.approx(math.hypot(0.027, ONE / math.sqrt(6)), rel=0.2)
    assert [found[at].members for at in (0, 4)] == [4, 8]
    assert launches.total([(1.0, 2.0), (1.0, 0.0)]) == (0.0, 0.0)


@pytest.mark.parametrize(("spread", "least_found"), [(0.004, 0.99), (0.01, 0.9)])
def test_two_commands_of_bench_are_rarely_called_different_and_5_percent_is_found(
    spread: float, least_found: float
) -> None:
    """Four launches, and at most ten where the ratio is neither sure nor known to 2 %. `spread`: of a command in one.

    Of equal ones 1 % may be called different by the first launches, and 5 % after the others.
    """
    rng, studies, planned, most = np.random.default_rng(5), times(300, 20_000), 4, 10

    def differ(ratio: float) -> tuple[bool, int]:
        logs = spread * rng.standard_normal((2, most)) + np.array([[math.log(ratio)], [0.0]])
        apart, of_all = logs[0] - logs[1], spreads(logs[:, :planned], ["a", "b"])
        variance, freedom = of_ratio(*of_all, together=False, differences=apart[:planned].tolist())
        count = planned
        if not launches.is_sure(apart[:planned].mean(), variance / planned, freedom):
            count = min(most, max(planned, launches.needed(variance, freedom, 0.02)))
        half = float(stdtrit(freedom, 0.975)) * math.sqrt(variance / count)
        return bool(abs(apart[:count].mean()) > half), count

    equal, slower = ([differ(ratio) for _ in range(studies)] for ratio in (1.0, 0.95))
    false, found = (Seen(sum(apart for apart, _ in each), studies) for each in (equal, slower))
    print(f"{spread}: equal {false}, found {found}, launches {np.mean([count for _, count in equal]):.1f}")
    assert false.keeps(most=0.06) and found.keeps(least=least_found)
