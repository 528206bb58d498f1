"""Coverage of every interval by simulation, with fixed seeds; and their edges.

4,000 series per case with STATISTICS=long: the standard error of a coverage of 95 % is 0.34 points, well inside the 93
to 97 asked for. Quick: 1,500, and 0.56.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import lfilter

from scaling_study.measure.clock import next_block
from scaling_study.stats.intervals import (
    TOO_FEW,
    TOO_SHORT,
    Interval,
    between_repeats,
    quotient,
    ratio,
    repeats_for,
    repeats_needed,
    step_trend,
    throughput,
    welch_satterthwaite,
    within_run,
)
from scaling_study.trial import Window

SERIES = 4000 if os.environ.get("STATISTICS") == "long" else 1500
STEP_SECONDS = 0.1  # the true mean
PHIS = (-0.5, 0.0, 0.2, 0.5)


def step_series(phi: float, steps: int, noise: float, seed: int, moving: float = 0.0) -> NDArray[np.float64]:
    """(SERIES, steps) positive step seconds of true mean STEP_SECONDS: exp of an AR(1) (ARMA with `moving`)."""
    burn = 100
    white = np.random.default_rng(seed).standard_normal((SERIES, steps + burn))
    x = lfilter([math.sqrt(1 - phi**2)], [1, -phi], white, axis=1)[:, burn:]
    if moving:
        x = x + moving * np.random.default_rng(seed + 1).standard_normal(x.shape)
    return STEP_SECONDS * np.exp(noise * x - noise**2 * (1 + moving**2) / 2)


def stopped(series: NDArray[np.float64], window: Window) -> NDArray[np.float64]:
    """The part of one series that a run under `window` would have timed."""
    clock, steps = np.cumsum(series), 0
    while block := next_block(steps, float(clock[steps - 1]) if steps else 0.0, window):
        steps += block
    assert steps <= len(series), "the simulation was too short"
    return series[:steps]


def covered(intervals: list[Interval], truth: float) -> float:
    return float(np.mean([i.low is not None and i.high is not None and i.low <= truth <= i.high for i in intervals]))


@pytest.mark.parametrize(
    ("phi", "steps", "noise"),
    [pytest.param(phi, steps, 0.01, marks=pytest.mark.long) for steps in (50, 200) for phi in PHIS]  # 0.1 is harder
    + [(phi, steps, 0.1) for steps in (50, 200) for phi in PHIS]
    + [pytest.param(0.8, 200, 0.01, marks=pytest.mark.long), (0.8, 200, 0.1), (0.0, 1000, 0.1), (0.8, 1000, 0.1)],
)
def test_coverage_of_a_run_of_given_length(phi: float, steps: int, noise: float) -> None:
    intervals = [within_run(series) for series in step_series(phi, steps, noise, seed=17)]
    assert 0.93 <= covered(intervals, STEP_SECONDS) <= 0.97
    trusted = [i for i in intervals if not i.verdict]
    assert len(trusted) >= 0.97 * SERIES
    assert 0.93 <= covered(trusted, STEP_SECONDS) <= 0.97


@pytest.mark.parametrize(
    ("phi", "window"),
    [
        (phi, window)
        for window in (
            Window(min_steps=50, min_seconds=0.0),  # ends at the first check
            Window(min_steps=50, min_seconds=5.0),  # half of the runs need a few steps more
            Window(min_steps=50, min_seconds=21.0),  # check points at 50, 100, 200 and where 21 s are reached
            Window(min_steps=50, min_seconds=60.0, max_seconds=25.0),  # max_seconds ends it
            Window(min_steps=50, min_seconds=60.0, max_seconds=90.0, max_steps=230),
        )
        for phi in ((0.0, 0.2, 0.5) if window.min_seconds < 20 else (0.0, 0.2, 0.5, 0.8))
    ],
)
def test_coverage_under_the_stopping_rule(phi: float, window: Window) -> None:
    runs = [stopped(series, window) for series in step_series(phi, 600, noise=0.1, seed=23)]
    intervals = [within_run(run) for run in runs]
    assert 0.93 <= covered(intervals, STEP_SECONDS) <= 0.97
    speeds = [throughput(i, 32) for i in intervals]
    assert 0.93 <= covered(speeds, 32 / STEP_SECONDS) <= 0.97


@pytest.mark.parametrize(("steps", "phi", "least"), [(50, 0.8, 0.92), (100, 0.8, 0.93), (200, 0.9, 0.925)])
def test_more_persistent_series_lose_little_and_many_are_labelled(steps: int, phi: float, least: float) -> None:
    intervals = [within_run(series) for series in step_series(phi, steps, 0.05, seed=29)]
    assert covered(intervals, STEP_SECONDS) >= least
    assert sum(i.verdict == TOO_SHORT for i in intervals) > 0.25 * SERIES


def test_coverage_with_another_kind_of_memory() -> None:
    """A slow drift under white jitter (ARMA(1,1)), which an AR(1) correction alone would miss."""
    intervals = [within_run(series) for series in step_series(0.8, 300, 0.05, seed=31, moving=1.0)]
    assert 0.93 <= covered(intervals, STEP_SECONDS) <= 0.97


def test_short_runs_are_labelled_and_very_short_ones_claim_nothing() -> None:
    assert within_run(np.linspace(0.1, 0.11, 49)).verdict == TOO_SHORT
    assert within_run(np.random.default_rng(0).normal(0.1, 0.01, 50)).verdict == ""
    assert within_run(np.linspace(0.1, 0.2, 400)).verdict == TOO_SHORT, "it drifts"
    assert within_run([0.1]) == Interval(0.1, None, None, 1, TOO_SHORT)
    two = within_run([0.1, 0.2])
    assert two.low is not None and two.low < 0.15 and two.mean == pytest.approx(0.15)


def test_throughput_swaps_the_bounds_and_claims_nothing_unbounded() -> None:
    speed = throughput(Interval(0.1, 0.08, 0.125, 60), 32)
    assert (speed.mean, speed.low, speed.high) == pytest.approx((320, 256, 400))
    assert throughput(Interval(0.1, -0.01, 0.21, 3, TOO_SHORT), 32).high is None


@pytest.mark.parametrize("repeats", [3, 5, 10])
def test_coverage_between_repeats(repeats: int) -> None:
    draws = np.random.default_rng(5).normal(700, 7, (SERIES, repeats))
    assert 0.93 <= covered([between_repeats(d) for d in draws], 700) <= 0.97


@pytest.mark.parametrize(
    ("noise_a", "noise_b"), [pytest.param(0.01, 0.01, marks=pytest.mark.long), (0.05, 0.05), (0.01, 0.05)]
)
@pytest.mark.parametrize(("a", "b"), [(3, 3), (4, 4), (5, 5), (10, 10), (3, 10), (10, 3)])
def test_coverage_of_a_ratio(a: int, b: int, noise_a: float, noise_b: float) -> None:
    rng = np.random.default_rng(7)
    above, below = rng.normal(700, 700 * noise_a, (SERIES, a)), rng.normal(400, 400 * noise_b, (SERIES, b))
    coverage = covered([ratio(x, y) for x, y in zip(above, below, strict=True)], 1.75)
    assert 0.925 <= coverage <= 0.975  # Welch is known to be a little wide at 3 against 3


def test_welch_satterthwaite_is_that_of_scipy_and_takes_arrays() -> None:
    from scipy.stats import ttest_ind

    assert welch_satterthwaite([2.0, 2.0], [4.0, 4.0]) == pytest.approx(8)
    assert welch_satterthwaite([2.0, 0.0], [4.0, 9.0]) == 4
    a, b = [98.0, 100.0, 103.0, 99.0], [55.0, 40.0, 61.0]
    variances = [float(np.var(values, ddof=1)) / len(values) for values in (a, b)]
    assert welch_satterthwaite(variances, [3.0, 2.0]) == pytest.approx(ttest_ind(a, b, equal_var=False).df)
    several = welch_satterthwaite([np.array([2.0, 2.0]), np.array([2.0, 0.0])], [np.array([4.0, 4.0]), np.full(2, 4.0)])
    assert several.tolist() == pytest.approx([8, 4])


def test_fewer_than_three_repeats_claim_no_interval() -> None:
    for values in ([700.0], [700.0, 710.0]):
        interval = between_repeats(values)
        assert (interval.low, interval.high, interval.half_width, interval.verdict) == (None, None, None, TOO_FEW)
        assert ratio(values, [400.0, 401.0, 402.0]).verdict == TOO_FEW
        assert ratio([400.0, 401.0, 402.0], values).low is None


def test_bad_input_is_named() -> None:
    for bad in ([], [1.0, math.nan], [[1.0]]):
        with pytest.raises(ValueError, match="finite numbers"):
            within_run(bad)
    with pytest.raises(ValueError, match="positive"):
        ratio([1.0, -1.0, 1.0], [1.0, 1.0, 1.0])


positive = st.lists(st.floats(1.0, 1000.0), min_size=3, max_size=12)


@given(positive, positive, st.floats(0.01, 100.0))
def test_a_ratio_reads_the_same_upside_down_and_in_any_unit(a: list[float], b: list[float], unit: float) -> None:
    up, down = ratio(a, b), ratio(b, a)
    assert up.low is not None and up.high is not None and down.low is not None and down.high is not None
    assert (down.low, down.high) == pytest.approx((1 / up.high, 1 / up.low))
    assert up.low <= up.mean <= up.high
    scaled = ratio(np.array(a) * unit, np.array(b) * unit)
    assert (scaled.mean, scaled.low, scaled.high) == pytest.approx((up.mean, up.low, up.high), rel=1e-6)


@given(st.lists(st.floats(0.001, 10.0), min_size=2, max_size=300), st.floats(0.001, 1000.0))
def test_an_interval_scales_with_its_unit(steps: list[float], unit: float) -> None:
    one, other = within_run(steps), within_run(np.array(steps) * unit)
    assert one.half_width is not None and other.half_width is not None
    assert other.mean == pytest.approx(one.mean * unit)
    assert other.half_width == pytest.approx(one.half_width * unit, rel=1e-6, abs=1e-9 * unit)


@given(positive, st.floats(0.001, 0.5))
def test_the_repeats_needed_are_the_fewest_that_do(values: list[float], target: float) -> None:
    needed = repeats_needed(values, target)
    spread = float(np.std(values, ddof=1) / np.mean(values))
    if needed is not None and needed > 3:
        from scipy.stats import t

        widths = [float(t.ppf(0.975, n - 1)) * spread / math.sqrt(n) for n in (needed - 1, needed)]
        assert widths[1] <= target * (1 + 1e-9) and widths[0] > target * (1 - 1e-9)


def test_importing_it_costs_the_sweep_nothing() -> None:
    heavy = "('scipy', 'torch', 'pandas')"
    code = f"import sys, scaling_study.stats.intervals; print([m for m in sys.modules if m in {heavy}])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_after_added_repeats_the_interval_rests_on_the_planned_ones() -> None:
    values = [1.0, 1.1, 0.9, 5.0, 5.0]
    staged = between_repeats(values, first=3)
    assert staged.mean == pytest.approx(2.6)
    assert staged.half_width == pytest.approx(4.302653 * 0.1 / math.sqrt(5), rel=1e-5)
    assert between_repeats(values, first=5) == between_repeats(values) == between_repeats(values, first=None)


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.03, 0.05])
@pytest.mark.parametrize("first", [3, 5])
def test_adding_repeats_by_their_spread_keeps_the_coverage(noise: float, first: int) -> None:
    """Stein's rule as the sweep applies it, up to 10 repeats at a target of +-2 %: 93 to 97 % of studies."""
    rng = np.random.default_rng(7)
    covered = 0
    for values in rng.normal(1.0, noise, (SERIES, 10)):
        total = min(repeats_for(values[:first], 0.02), 10)
        interval = between_repeats(values[:total], first=first)
        assert interval.low is not None and interval.high is not None
        covered += interval.low <= 1.0 <= interval.high
    assert 0.93 <= covered / SERIES <= 0.97


def test_an_interval_of_four_means_covers_as_often_as_it_says() -> None:
    draw, trials = random.Random(0), 2000

    def sample(mean: float, spread: float) -> list[float]:
        return [mean * (1 + spread * draw.gauss(0, 1)) for _ in range(4)]

    covered = 0
    for _ in range(trials):
        found = quotient([sample(200, 0.05), sample(2, 0.03)], [sample(50, 0.05), sample(1, 0.03)])
        assert found.low is not None and found.high is not None
        covered += found.low <= 8 <= found.high
    assert 0.93 < covered / trials < 0.98


@pytest.mark.parametrize(
    ("step_seconds", "trend"),
    [
        ([1.0] * 6, 0.0),
        ([2.0, 2.0, 1.5, 1.5, 1.0, 1.0], -0.5),
        ([1.0, 1.0, 1.0, 9.0, 9.0, 1.1, 1.1, 1.1], 0.1),  # eight: two and two, the middle is passed over
        ([9.0, 1.0, 1.0, *[1.0] * 5, 1.0], 0.0),  # one slow step is no trend
        ([3.0, 2.0, 1.0, 1.0, 1.0], None),
        ([], None),
        ([0.0] * 6, None),
    ],
)
def test_step_trend(step_seconds: list[float], trend: float | None) -> None:
    assert step_trend(step_seconds) == (None if trend is None else pytest.approx(trend))
