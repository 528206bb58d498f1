"""Scores of surgical triplets against ivtmetrics 0.1.5, the field's own package: the same where that is right, and its
two faults, which are not ours."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from ivtmetrics import Recognition
from numpy.typing import NDArray

from scaling_study import targets
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import metrics
from scaling_study.workloads.metrics import COLUMNS, figures, members

BANK = np.array(Recognition().bank)  # theirs: triplet, instrument, verb, target, instrument and verb, and target
FRAMES = 240


@dataclass(frozen=True)
class Operations:
    labels: NDArray[np.uint8]
    video: NDArray[np.int64]
    triplets: NDArray[np.int64]


def operations(chosen: NDArray[np.bool_], videos: int = 2) -> Operations:
    """`chosen`: (frames, 100) which triplets each has; their parts follow."""
    triplets = BANK[:, 1:4].astype(np.int64)
    labels = np.zeros((len(chosen), 131), np.uint8)
    labels[:, COLUMNS["ivt"]] = chosen
    for name, part in zip("ivt", triplets.T, strict=True):
        for frame, triplet in zip(*chosen.nonzero(), strict=True):
            labels[frame, COLUMNS[name].start + part[triplet]] = 1
    return Operations(labels, np.arange(len(chosen)) * videos // len(chosen), triplets)


def published(surgery: Operations, scores: NDArray[np.float64]) -> dict[str, float]:
    """What ivtmetrics makes of triplet scores, (n, 100)."""
    their = Recognition(100)
    for video in np.unique(surgery.video):
        ours = surgery.video == video
        their.update(surgery.labels[ours][:, COLUMNS["ivt"]], scores[ours])
        their.video_end()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: float(their.compute_video_AP(name)["mAP"]) for name in ("i", "v", "t", "iv", "it", "ivt")}


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def test_where_every_class_is_in_every_video_all_figures_of_triplets_are_ivtmetrics(random) -> None:
    surgery = operations(random.random((FRAMES, 100)) < 0.08)
    logits = random.normal(size=(FRAMES, 131)).round(1)  # with ties
    found = figures(logits, np.arange(FRAMES), surgery)
    for name, value in published(surgery, logits[:, COLUMNS["ivt"]]).items():
        ours = found["ap_ivt" if name == "ivt" else f"ap_{name}_of_triplets"]
        assert ours == pytest.approx(value, abs=1e-12), name
    assert tuple(found) == targets.TRIPLETS


def test_their_first_fault_absent_classes_count_as_0() -> None:
    """A perfect prediction, with two triplets present."""
    chosen = np.zeros((20, 100), bool)
    chosen[::2, 3], chosen[1::2, 70] = True, True
    surgery = operations(chosen, videos=1)
    perfect = np.where(surgery.labels, 5.0, -5.0)
    assert published(surgery, perfect[:, COLUMNS["ivt"]])["ivt"] == pytest.approx(0.02)
    assert {name: value for name, value in figures(perfect, np.arange(20), surgery).items() if value != 1} == {}


def test_their_second_fault_a_heads_own_skill_cannot_be_seen(random) -> None:
    """An instrument head that is always right, and one that guesses, beside the same triplet head."""
    surgery = operations(random.random((FRAMES, 100)) < 0.03)
    guessed = random.normal(size=(FRAMES, 131))
    right = guessed.copy()
    right[:, COLUMNS["i"]] = np.where(surgery.labels[:, COLUMNS["i"]], 5.0, -5.0)
    both = [figures(logits, np.arange(FRAMES), surgery) for logits in (right, guessed)]
    assert both[0]["ap_i"] == 1.0 and both[1]["ap_i"] < 0.7
    assert both[0]["ap_i_of_triplets"] == both[1]["ap_i_of_triplets"], "all that ivtmetrics has"


def test_pairs_of_the_heads_are_ordered_by_the_product_of_probabilities(random) -> None:
    surgery = operations(random.random((FRAMES, 100)) < 0.05)
    logits = random.normal(size=(FRAMES, 131), scale=3)
    probability = 1 / (1 + np.exp(-logits))
    pairs = members(surgery.triplets, (0, 1))
    product = np.full((FRAMES, 131), -9.0)
    for (instrument, verb), triplets in pairs.items():
        both = probability[:, instrument] * probability[:, COLUMNS["v"].start + verb]
        product[:, COLUMNS["ivt"].start + np.array(triplets)] = both[:, None]
    found = figures(logits, np.arange(FRAMES), surgery)
    assert found["ap_iv"] == pytest.approx(figures(product, np.arange(FRAMES), surgery)["ap_iv_of_triplets"])
    extreme = figures(np.where(surgery.labels, 800.0, -800.0), np.arange(FRAMES), surgery)
    assert extreme["ap_iv"] < 1.0, "who does what is not known where a frame has two of each"


def test_what_is_no_number_has_no_figure(random) -> None:
    surgery = operations(random.random((10, 100)) < 0.05)
    logits = random.normal(size=(10, 131))
    logits[3, 3] = np.nan
    assert all(np.isnan(value) for value in figures(logits, np.arange(10), surgery).values())
    assert all(np.isnan(value) for value in figures(logits, np.arange(0), surgery).values())


def test_each_heads_loss_is_the_mean_over_its_own_classes() -> None:
    labels = torch.zeros(2, 131)
    labels[0, 0] = 1
    logits = torch.zeros(2, 131)
    logits[0, :6] = torch.tensor([9.0, -9, -9, -9, -9, -9])
    found = metrics.losses(logits.double(), labels.double())
    assert found[0, 0] < 1e-3 and found[1].tolist() == pytest.approx([np.log(2)] * 4)


def test_a_split_is_of_its_own_frames_and_an_empty_one_is_none(random) -> None:
    surgery = operations(random.random((30, 100)) < 0.05, videos=3)
    ids = {"validation": torch.arange(0, 0), "test": torch.arange(20, 30)}
    held = metrics.held_out(surgery, ids, lambda ids: (ids,), Trial(model="resnet8"), Ranks())
    assert held.sizes == {"test": 10} and held.fetch("test", torch.tensor([3]))[-1].tolist() == [23]
    assert tuple(held.metrics()) == (*targets.TRIPLETS, "loss")
