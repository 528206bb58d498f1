"""Regressions found and false alarms raised over 36 configurations, by simulation with fixed seeds and a known truth.

How often each is simulated, and what may be seen of it: simulations.py. Run with -s to see the shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from planted import planted_row
from simulations import Seen, times

from analysis.compare.verdicts import FASTER, POWER, SLOWER, MatchedPair, found_in, judge, judge_ratios
from analysis.statistics.ranking import holm
from scaling_study.stats.intervals import repeats_for
from scaling_study.stats.spread import Spread, believed

COMPARISONS, CONFIGURATIONS, NOISE, THRESHOLD = times(500, 20_000), 36, 0.01, 0.01
ALARMS, FOUND = 0.05, 0.90  # at most, at least
TARGET, MOST_REPEATS = 0.02, 10  # of a study's own, where repeats are added
Values = NDArray[np.float64]
Noises = Callable[[np.random.Generator], Values]


def alike(rng: np.random.Generator) -> Values:
    return np.full(CONFIGURATIONS, NOISE)


def unlike(rng: np.random.Generator) -> Values:
    """Spreads of configurations that differ by a factor of two either way, as real ones do."""
    return NOISE * np.exp(0.7 * rng.standard_normal(CONFIGURATIONS))


def one_wild(rng: np.random.Generator) -> Values:
    return np.where(np.arange(CONFIGURATIONS) == 0, 15 * NOISE, NOISE)


def of_two_kinds(rng: np.random.Generator) -> Values:
    """Every other one ten times as noisy: no one family."""
    return np.where(np.arange(CONFIGURATIONS) % 2, 3 * NOISE, 0.3 * NOISE)


def measured(rng: np.random.Generator, noises: Values, change: float, most: int) -> Values:
    """(2, CONFIGURATIONS, most) throughputs of both sides; the first configuration changed by `change`."""
    speeds = 100 * (1 + noises[:, None] * rng.standard_normal((2, CONFIGURATIONS, most)))
    speeds[1, 0] *= 1 + change
    return speeds


def counted(speeds: Values, planned: int) -> NDArray[np.int64]:
    """(2, CONFIGURATIONS): how many of the repeats would have been run, the planned ones at least."""
    most = speeds.shape[2]
    if most == planned:
        return np.full(speeds.shape[:2], planned)
    return np.array([[min(repeats_for(one[:planned], TARGET), most) for one in side] for side in speeds])


def compared(speeds: Values, counts: NDArray[np.int64], planned: int) -> tuple[Values, Spread, Values]:
    """(ratios, spread, factors) as verdicts.judge() makes them of a study's rows; the last test holds them together."""
    runs = np.arange(speeds.shape[2]) < counts[..., None]
    means = (speeds * runs).sum(axis=2) / counts
    variances = np.log(speeds[..., :planned]).var(axis=2, ddof=1).mean(axis=0)
    spread = believed(variances, np.full(CONFIGURATIONS, 2 * (planned - 1)))
    return means[1] / means[0], spread, (1 / counts).sum(axis=0)


def simulated(
    noises: Noises, repeats: int, change: float = 0.0, most: int | None = None, comparisons: int = COMPARISONS
) -> tuple[Seen, Seen]:
    """(comparisons with a false alarm, comparisons in which the one configuration that did change was found).

    `change`: of the throughput of one configuration, -0.03: 3 % slower. `most`: repeats are added, up to so many.
    """
    rng = np.random.default_rng(11)
    alarms = found = 0
    for _ in range(comparisons):
        speeds = measured(rng, noises(rng), change, most or repeats)
        ratios, spread, factors = compared(speeds, counted(speeds, repeats), repeats)
        said = [row["verdict"] for row in judge_ratios(ratios, spread, factors, THRESHOLD)]
        found += said[0] == (SLOWER if change < 0 else FASTER)
        alarms += any(verdict in (SLOWER, FASTER) for verdict in (said[1:] if change else said))
    return Seen(alarms, comparisons), Seen(found, comparisons)


@pytest.mark.parametrize("repeats", [3, 5])
@pytest.mark.parametrize("noises", [alike, unlike, one_wild, of_two_kinds])
def test_false_alarms_in_at_most_5_percent_of_comparisons(noises: Noises, repeats: int) -> None:
    alarms, _ = simulated(noises, repeats)
    print(f"\n{repeats} repeats a side, {noises.__name__}: false alarms in {alarms}")
    assert alarms.keeps(most=ALARMS)


@pytest.mark.parametrize("noises", [alike, unlike])
def test_false_alarms_where_repeats_were_added_because_of_their_spread(noises: Noises) -> None:
    alarms, _ = simulated(noises, 3, most=MOST_REPEATS, comparisons=COMPARISONS // 2)
    print(f"\n3 to {MOST_REPEATS} repeats a side, {noises.__name__}: false alarms in {alarms}")
    assert alarms.keeps(most=ALARMS)


@pytest.mark.parametrize("change", [-0.03, 0.03])
def test_a_change_of_3_percent_is_found_at_5_repeats_a_side(change: float) -> None:
    alarms, found = simulated(alike, 5, change)
    print(f"\n5 repeats a side: {100 * change:+.0f} % found in {found}, false alarms in {alarms}")
    assert found.keeps(least=FOUND)
    assert alarms.keeps(most=ALARMS)


@pytest.mark.parametrize("repeats", [3, 5])
def test_what_is_said_to_be_detectable_is_found_in_9_of_10(repeats: int) -> None:
    rng = np.random.default_rng(12)
    studies = [measured(rng, alike(rng), 0.0, repeats) for _ in range(100)]
    said = [found_in(POWER, *compared(one, counted(one, repeats), repeats)[1:]) for one in studies]
    change = float(np.median(said))
    _, found = simulated(alike, repeats, 1 / (1 + change) - 1)
    print(f"\n{repeats} repeats a side: a change of {100 * change:.2f} % is said to be detectable, found in {found}")
    assert found.keeps(POWER - 0.02, POWER + 0.02)


def test_one_pooled_spread_would_cry_wolf() -> None:
    """Why the spreads are not simply pooled: what the same test would do to configurations that are unlike."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(COMPARISONS):
        changes = (unlike(rng)[:, None] * rng.standard_normal((CONFIGURATIONS, 2))) @ [1, -1] / math.sqrt(5)
        pooled = NOISE * math.exp(0.7**2)  # what a pooled spread would be, were it known without error
        p = [math.erfc(abs(change) / pooled / math.sqrt(2 / 5) / math.sqrt(2)) for change in changes]
        alarms += bool((holm(p) <= 0.05).any())
    assert alarms / COMPARISONS > 0.2


def test_what_is_simulated_here_is_what_a_comparison_does() -> None:
    rng, planned = np.random.default_rng(13), 3
    speeds = measured(rng, unlike(rng), -0.2, MOST_REPEATS)
    counts = counted(speeds, planned)
    assert counts.min() == planned and counts.max() == MOST_REPEATS
    rows = [
        [planted_row(one[:n], planned=planned) for one, n in zip(*side, strict=True)]
        for side in zip(speeds, counts, strict=True)
    ]
    table = judge([MatchedPair(a, b) for a, b in zip(*rows, strict=True)], THRESHOLD).table
    ratios, spread, factors = compared(speeds, counts, planned)
    for name in ("ratio", "ratio_low", "ratio_high", "p_value", "p_corrected"):
        here = [one[name] for one in judge_ratios(ratios, spread, factors, THRESHOLD)]
        assert list(table[name]) == pytest.approx(here)


def test_an_interval_says_what_its_verdict_says() -> None:
    """One of 36 pairs whose own 95 % interval leaves out 1, and which is no more than chance among so many."""
    rng, seen = np.random.default_rng(4), set[str]()
    for change in (0.0, 0.0, 0.06):
        logs = rng.standard_normal(CONFIGURATIONS) * NOISE * math.sqrt(2 / 3) + np.where(np.arange(36) == 0, change, 0)
        spread = Spread(np.full(36, NOISE**2), np.full(36, 60.0))
        for one in judge_ratios(np.exp(logs), spread, np.full(36, 2 / 3), THRESHOLD):
            outside = one["ratio_low"] > 1 or one["ratio_high"] < 1
            assert outside == (one["verdict"] not in ("not resolved", "unchanged")), one
            seen.add("a change" if outside else "corrected" if one["p_value"] < 0.05 else "none")
    assert seen == {"a change", "corrected", "none"}
