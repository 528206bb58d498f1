"""Average precision: literals, scikit-learn's for whatever scores, and what absent classes do to a mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from scaling_study.stats import scores as ap


def columns(*each: list[float]) -> np.ndarray:
    return np.array(each, float).T


@pytest.mark.parametrize("digits", [1, 6], ids=["with ties", "without"])
def test_it_is_scikit_learns_for_whatever_scores(digits: int) -> None:
    random = np.random.default_rng(digits)
    scores, labels = random.normal(size=(60, 40)).round(digits), (random.random((60, 40)) < 0.2).astype(int)
    labels[0] = 1  # every class is there
    theirs = average_precision_score(labels, scores, average=None)
    np.testing.assert_allclose(ap.of_classes(scores, labels), theirs, rtol=0, atol=1e-12)


def test_a_class_that_is_absent_is_left_out_and_not_counted_as_0() -> None:
    scores = np.random.default_rng(0).normal(size=(10, 100))
    labels = np.zeros((10, 100))
    labels[:5, 0], labels[5:, 1] = 1, 1
    perfect = np.where(labels, 10.0, scores)
    video = np.array([1] * 5 + [2] * 5)
    assert ap.mean(perfect, labels, video) == 1.0
    assert np.isnan(ap.of_videos(perfect, labels, video)).sum() == 198


def test_classes_are_averaged_over_their_videos_first() -> None:
    """Class 0 is in both videos (1 and 1/2), class 1 in the first alone (1/2)."""
    scores, labels = columns([3, 1, 1, 3], [3, 2, 0, 0]), columns([1, 0, 1, 0], [0, 1, 0, 0])
    video = np.array([7, 7, 9, 9])
    each = ap.of_videos(scores, labels, video)
    assert each[:, 0].tolist() == [1.0, 0.5] and each[0, 1] == 0.5 and math.isnan(each[1, 1])
    assert ap.mean(scores, labels, video) == pytest.approx((0.75 + 0.5) / 2)


def test_no_class_at_all_has_no_average_precision() -> None:
    assert math.isnan(ap.mean(np.zeros((3, 2)), np.zeros((3, 2)), np.zeros(3)))
    assert math.isnan(ap.in_top(np.zeros((3, 2)), np.zeros((3, 2)), 1))


def test_how_many_labels_are_among_the_highest_scores_of_their_frame() -> None:
    scores, labels = np.array([[4.0, 3, 2, 1], [1, 2, 3, 4]]), np.array([[1, 0, 1, 0], [1, 0, 0, 1]])
    assert ap.in_top(scores, labels, 2) == 2 / 4 and ap.in_top(scores, labels, 3) == 3 / 4


def test_a_group_has_the_highest_score_of_its_members() -> None:
    triplets = np.array([[1.0, 5.0, 2.0], [0.0, -1.0, 3.0]])
    assert ap.grouped(triplets, [[0, 1], [2]]).tolist() == [[5.0, 2.0], [0.0, 3.0]]
