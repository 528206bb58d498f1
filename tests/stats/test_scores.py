"""Average precision as scikit-learn has it, and maps that point: by hand on a frame of 8 x 12 pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from scaling_study.stats import scores
from scaling_study.stats import scores as ap
from scaling_study.stats.scores import Region


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


GRID = (2, 3)
MASK = np.zeros((8, 12), bool)
MASK[:4, :4] = True  # the cell at the top left, whole


def peak(row: int, column: int) -> np.ndarray:
    shown = np.zeros(GRID)
    shown[row, column] = 1
    return shown


def test_a_map_points_to_its_highest_cell() -> None:
    place = Region(MASK, ((1.0, 1.0),), GRID)
    assert [place.score(peak(*at)).mask for at in ((0, 0), (0, 1), (1, 0))] == [1.0, 0.0, 0.0]
    assert scores.highest(peak(1, 2), (8, 12)) == (10.0, 6.0)


def test_a_thin_instrument_is_in_the_cells_that_it_runs_through() -> None:
    thin = np.zeros((8, 12), bool)
    thin[0, :5] = True  # a line along the edge, which no cell's middle is on
    place = Region(thin, (), GRID)
    assert [place.score(peak(*at)).mask for at in ((0, 0), (0, 1), (0, 2), (1, 0))] == [1.0, 1.0, 0.0, 0.0]
    odd = Region(np.eye(5, 7, dtype=bool), (), (2, 3))  # cells of 2.5 x 2.33 pixels: a pixel on an edge is in both
    assert odd.hits.tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]


def test_a_tip_is_met_from_at_most_a_cell_away() -> None:
    place = Region(MASK, ((6.0, 2.0),), GRID)  # the middle of the cell in the middle of the top row
    assert [place.score(peak(*at)).tip for at in ((0, 0), (0, 1), (0, 2), (1, 1))] == [1.0, 1.0, 1.0, 1.0]
    corner = Region(MASK, ((1.0, 0.5),), GRID)
    assert [corner.score(peak(*at)).tip for at in ((0, 0), (0, 1), (0, 2), (1, 0))] == [1.0, 0.0, 0.0, 0.0]
    both = Region(MASK, ((1.0, 0.5), (11.0, 0.5)), GRID)
    assert both.score(peak(0, 2)).tip == 1.0, "any of several tips"
    assert math.isnan(Region(MASK, (), GRID).score(peak(0, 0)).tip)


def test_energy_is_of_the_map_as_it_is_enlarged() -> None:
    """A peak in one cell, enlarged bilinearly: by hand along each side, 4 pixels of which the first 2 are 1."""
    along = np.array([1, 1, 0.875, 0.625, 0.375, 0.125, 0, 0, 0, 0, 0, 0])
    down = np.array([1, 1, 0.875, 0.625, 0.375, 0.125, 0, 0])
    energy = Region(MASK, (), GRID).score(peak(0, 0)).energy
    assert energy == pytest.approx(np.outer(down, along)[MASK.nonzero()].sum() / np.outer(down, along).sum())
    np.testing.assert_allclose(scores.enlarged(peak(0, 0), (8, 12)), np.outer(down, along))


def test_a_map_that_shows_nothing_scores_as_chance_does() -> None:
    place = Region(MASK, ((1.0, 0.5),), GRID)
    chance = scores.chance(place)
    assert chance == place.score(np.zeros(GRID)) == place.score(np.full(GRID, -2.0))
    assert (chance.mask, chance.tip) == (pytest.approx(1 / 6), pytest.approx(1 / 6))
    assert chance.energy == pytest.approx(MASK.mean())


def test_enlarging_is_what_torch_does() -> None:
    torch = pytest.importorskip("torch")
    shown = np.random.default_rng(0).random((6, 11))
    theirs = torch.nn.functional.interpolate(torch.from_numpy(shown)[None, None], (96, 176), mode="bilinear")
    np.testing.assert_allclose(scores.enlarged(shown, (96, 176)), theirs[0, 0].numpy(), atol=1e-12)
