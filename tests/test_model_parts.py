"""Rates of parts of a model, and what is frozen: read from text, and refused where nothing would train (F11)."""

from __future__ import annotations

import pytest

from scaling_study import models


def test_a_rate_of_heads_is_that_of_each_but_those_that_have_their_own() -> None:
    assert models.rates(None) == {}
    assert models.rates("backbone=0.0001, instrument=0.01") == {"backbone": 1e-4, "instrument": 0.01}
    assert models.rates("heads=0.01,verb=0.1") == {"instrument": 0.01, "verb": 0.1, "target": 0.01, "triplet": 0.01}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is no rate of a part: it is one of backbone, instrument, verb, target, triplet, heads, and a rate, "
             "like backbone=0.0001,heads=0.001"),
        ("verb=1,verb=2", "part_learning_rates=verb=1,verb=2: verb is given twice"),
        ("verb=fast", "verb='fast' is no number"),
        ("backbone=0", "backbone=0: a part at learning rate 0 does not train (F11); freeze: backbone says so"),
        ("verb=nan", "verb=nan: a learning rate is above 0"),
    ],
)  # fmt: skip
def test_what_is_no_rate_is_refused_with_what_would_be(text: str, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        models.rates(text)
    assert str(refused.value).startswith(why)
    assert [key for key, _ in models.problems({"part_learning_rates": text})] == ["part_learning_rates"]


def test_a_frozen_backbone_has_neither_a_rate_nor_augmented_frames() -> None:
    frozen = {"freeze": "backbone", "part_learning_rates": "heads=0.1"}
    assert not list(models.problems(frozen)) and not list(models.problems({}))
    assert list(models.problems({**frozen, "part_learning_rates": "backbone=0.1"})) == [
        ("part_learning_rates", "part_learning_rates=backbone=0.1: freeze=backbone trains no backbone")
    ]
    (problem,) = models.problems({**frozen, "train_augmentation": "crop_flip"})
    assert problem[0] == "train_augmentation" and "augmentation=crop_flip with freeze=backbone" in problem[1]
