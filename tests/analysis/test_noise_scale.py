"""The gradient noise scale on gradients of known mean and covariance, and how often its interval holds the truth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from planted_trainings import gradients
from scipy.signal import lfilter
from simulations import Seen, times

from analysis.statistics.batch_size import (
    CONTRADICTORY,
    NoiseScale,
    Norms,
    noise_over_seeds,
    noise_scale,
    predicted_efficiency,
)

SIMULATIONS = times(quick=240, long=4000)
TRUE = 200.0
DIMENSIONS = 20


def run(rng: np.random.Generator, steps: int, scale: float = TRUE, ranks: int = 2, memory: float = 0.0) -> Norms:
    """One training's norms. `memory`: lag-one autocorrelation of the log covariance of its steps, which is 1 on
    average."""
    spread, noisier = 0.4, None
    if memory:
        white = rng.standard_normal(steps + 50) * math.sqrt(1 - memory**2)
        noisier = np.exp(spread * lfilter([1], [1, -memory], white)[50:] - spread**2 / 2)
    norms = gradients(32, ranks, steps, scale, rng, DIMENSIONS, noisier)
    return Norms(32, 32 * ranks, norms[:, 0], norms[:, 1])


def unlike(rng: np.random.Generator, count: int, steps: int) -> list[Norms]:
    """Runs whose true scales differ by a tenth, around TRUE."""
    return [run(rng, steps, TRUE * math.exp(0.1 * rng.standard_normal() - 0.005)) for _ in range(count)]


CASES: dict[str, Callable[[np.random.Generator], list[Norms]]] = {
    "one run": lambda rng: [run(rng, 100)],
    "one long run": lambda rng: [run(rng, 400)],
    "eight ranks": lambda rng: [run(rng, 100, ranks=8)],
    "steps that remember": lambda rng: [run(rng, 200, memory=0.8)],
    "two runs": lambda rng: [run(rng, 60), run(rng, 90)],
    "three unlike runs": lambda rng: unlike(rng, 3, 60),
    "five unlike runs": lambda rng: unlike(rng, 5, 60),
}


@pytest.mark.parametrize("case", CASES)
def test_the_interval_holds_the_true_scale_in_95_of_100_trainings(case: str) -> None:
    rng = np.random.default_rng(11)
    scales = [noise_scale(CASES[case](rng)) for _ in range(SIMULATIONS)]
    covered = Seen(sum(holds(scale, TRUE) for scale in scales), SIMULATIONS)
    print(f"{case}: {covered}")
    assert covered.keeps(0.93, 0.97)
    assert 0.95 < np.median([scale.scale for scale in scales if scale.scale]) / TRUE < 1.05


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_scale_over_seeds_and_batch_sizes_takes_the_runs_of_a_seed_as_one_value(seeds: int) -> None:
    """Four runs of each seed share a scale, which differs by a tenth between seeds. Taken as independent, they would
    hold the truth in fewer."""
    rng, covered, apart = np.random.default_rng(11), 0, 0
    for _ in range(SIMULATIONS):
        own = TRUE * np.exp(0.1 * rng.standard_normal(seeds) - 0.005)
        runs = {seed: [run(rng, 100, scale) for _ in range(4)] for seed, scale in enumerate(own)}
        covered += holds(noise_over_seeds(runs), TRUE)
        apart += holds(noise_scale([one for ours in runs.values() for one in ours]), TRUE)
    shares = Seen(covered, SIMULATIONS), Seen(apart, SIMULATIONS)
    print(f"{seeds} seeds at four batch sizes: {shares[0]}; every run by itself: {shares[1]}")
    assert shares[0].keeps(0.93, 0.97) and shares[1].share < shares[0].share


def holds(scale: NoiseScale, truth: float) -> bool:
    return scale.low is not None and scale.low <= truth <= (math.inf if scale.high is None else scale.high)


def test_a_step_is_taken_apart_as_the_paper_has_it() -> None:
    """|g|^2 of 5 at 10 samples and 3 at 30: 2 of the true gradient and 30 / b of noise."""
    sqr, variance = Norms(10, 30, [5.0], [3.0]).parts()
    assert [*sqr, *variance] == pytest.approx([2.0, 30.0])


def test_numerator_and_denominator_are_averaged_apart() -> None:
    """Of the ratio of each step the mean would be 9.5: a single |G|^2 may be near 0."""
    small, big = [5.0, 4.0] * 10, [3.0, 2.2] * 10
    found = noise_scale([Norms(10, 30, small, big)])
    assert found.scale == pytest.approx(28.5 / 1.65)


def test_a_gradient_that_may_be_nothing_bounds_the_scale_from_below_only() -> None:
    found = noise_scale([run(np.random.default_rng(3), 20, scale=20_000.0)])
    assert found.high is None and found.low is not None and 0 < found.low < 20_000


def test_larger_batches_with_larger_gradients_are_no_noise() -> None:
    """As where the sum over ranks was noted in place of the mean."""
    found = noise_scale([Norms(10, 20, np.full(50, 1.0) + 0.01 * np.arange(50) % 0.03, np.full(50, 4.0))])
    assert (found.scale, found.low, found.high, found.verdict) == (None, None, None, CONTRADICTORY)


@pytest.mark.parametrize("steps", [0, 7])
def test_of_few_steps_nothing_is_claimed(steps: int) -> None:
    found = noise_scale([Norms(10, 20, np.ones(steps), np.ones(steps))])
    assert (found.scale, found.low, found.high) == (None, None, None) and found.verdict == f"{steps} of 8 steps"


def test_three_seeds_have_the_interval_between_them() -> None:
    """Fieller's, solved by hand: S of 90, 100, 110 and |G|^2 of 1 exactly give Student's t of S."""
    runs = [
        Norms(1, 2, np.full(10, 1 + variance), np.full(10, 1 + variance / 2)) for variance in (90.0, 100.0, 110.0)
    ]  # fmt: skip
    found = noise_scale(runs)
    half = 4.302653 * 10 / math.sqrt(3)
    assert (found.scale, found.low, found.high) == pytest.approx((100, 100 - half, 100 + half), rel=1e-5)
    assert (found.freedom, found.rows) == (2, 30)


# |G|^2 and variance at the smallest batch, as AdaptDL's goodput_test.py draws them (numpy's RandomState(0)).
ADAPTDL = [
    (2.331282857048392, 10.75082206800458, {1: 1.0, 2: 0.8487494838898707, 8: 0.44495313552867566}),
    (1.7144129128299535, 4.92852581369213, {1: 1.0, 2: 0.7948616993980073, 8: 0.3563076385796174}),
    (4.4639290893685635, 1.2326495231674628, {1: 1.0, 2: 0.5606588548196465, 37.5: 0.03378152723537035}),
]


@pytest.mark.parametrize(("sqr", "variance", "efficiencies"), ADAPTDL)
def test_the_efficiency_is_that_of_adaptdl_on_its_own_inputs(
    sqr: float, variance: float, efficiencies: dict[float, float]
) -> None:
    for growth, efficiency in efficiencies.items():
        assert predicted_efficiency(16 * variance / sqr, 16 * growth, 16) == pytest.approx(efficiency, rel=1e-12)
