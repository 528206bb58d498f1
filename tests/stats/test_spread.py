"""The spread that is believed: one's own where it is known, everybody's where all are alike, and never nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from scaling_study.stats.spread import Spread, believed

ONE = (np.array([0]), np.array([1.0]))


def first_half_width(spread: Spread, confidence: float = 0.95) -> float:
    return float(spread.half_widths(confidence, ONE)[0])


@pytest.mark.parametrize("freedom", [2, 4, 8, 20])
def test_one_configuration_alone_is_students_t(freedom: int) -> None:
    alone = believed([0.01**2], [freedom])
    assert first_half_width(alone) == pytest.approx(0.01 * stdtrit(freedom, 0.975), rel=0.1)


def test_many_alike_ones_are_pooled() -> None:
    rng = np.random.default_rng(3)
    made = believed(0.01**2 * rng.chisquare(4, 400) / 4, np.full(400, 4))
    assert made.typical == pytest.approx(0.01, rel=0.05)
    assert np.sqrt(made.variance) == pytest.approx(0.01, rel=0.25)
    assert made.freedom.min() > 25


def test_a_noisy_one_keeps_its_noise_and_does_not_spoil_the_others() -> None:
    rng = np.random.default_rng(4)
    true = np.where(np.arange(36) == 0, 0.15, 0.01)
    made = believed(true**2 * rng.chisquare(8, 36) / 8, np.full(36, 8))
    assert np.sqrt(made.variance[0]) > 0.08
    assert np.median(np.sqrt(made.variance[1:])) == pytest.approx(0.01, rel=0.15)


def test_repeats_that_agree_by_chance_do_not_vary_by_nothing() -> None:
    made = believed([0.0, 1e-4, 1.2e-4, 0.9e-4, 1.1e-4], np.full(5, 2))
    assert made.variance[0] > 1e-6
    assert np.isfinite(first_half_width(believed([0.0, 0.0], [2, 2])))


def test_p_values_and_intervals_say_the_same() -> None:
    made = believed([1e-4, 2e-4, 4e-4], [4, 4, 8])
    terms = (np.array([0, 1]), np.array([0.2, 0.2])), (np.array([2, 2]), np.array([0.1, 0.4]))
    halves = made.half_widths(0.95, *terms)
    assert made.p_values(halves, *terms) == pytest.approx(0.05)
    assert made.p_values(-halves, *terms) == pytest.approx(0.05)


@given(st.lists(st.floats(1e-8, 1e-1), min_size=1, max_size=40), st.floats(0.01, 100))
def test_the_unit_of_the_noise_does_not_matter(variances: list[float], unit: float) -> None:
    freedoms = [2 + index % 5 for index in range(len(variances))]
    one, other = believed(variances, freedoms), believed(np.array(variances) * unit, freedoms)
    assert other.variance == pytest.approx(one.variance * unit, rel=1e-6)
    assert other.freedom == pytest.approx(one.freedom, rel=1e-6)
    assert (one.freedom > 0).all() and (one.variance > 0).all()
