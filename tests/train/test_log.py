"""What a training says of itself, and its seconds by what they were spent on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scaling_study.records.schema import ParameterGroup
from scaling_study.train import log
from scaling_study.train.log import Intervals, TrainingProgress


def test_frozen_weights_are_a_group_at_a_rate_of_0() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert log.groups(optimizer, [0.1], model) == [
        ParameterGroup("0", 11, 0.1),
        ParameterGroup("asks for no gradient", 6, 0.0),
    ]
    model[0].weight.requires_grad_(True)
    assert len(log.groups(optimizer, [0.1], model)) == 1


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "interval"),
        ([{"steps": 40, "loss_steps": 40}, {"steps": 60, "loss_steps": 20}], "interval"),
        ([{"steps": 40, "loss_steps": 40}, {"steps": 80, "loss_steps": 1}], "last 1 of 40 batches"),
    ],
)
def test_a_logged_loss_is_of_every_step_or_says_of_how_many(rows, text: str) -> None:
    assert log.logged_loss(rows) == text


def test_what_is_no_number_is_null() -> None:
    said = {"rows": [{"loss": float("nan"), "steps": 3}], "seconds": 1.5, "text": "nan"}
    assert log.recordable(said) == {"rows": [{"loss": None, "steps": 3}], "seconds": 1.5, "text": "nan"}


def test_what_our_loop_counted_itself_is_not_counted_twice() -> None:
    progress = TrainingProgress()
    intervals = Intervals(progress)
    intervals.end("evaluate", 5.0)  # before the first mark: nothing is known of it
    intervals.begin(10.0)
    progress.seconds["log"] += 1.5  # within the evaluation
    intervals.end("evaluate", 14.0)
    intervals.end("save", 14.25)
    assert progress.seconds == {"train": 0.0, "evaluate": 2.5, "save": 0.25, "log": 1.5, "test": 0.0}


def test_epochs_of_rounds_go_by_the_samples_that_they_had() -> None:
    progress = TrainingProgress(steps=6)
    assert progress.epochs(4) == 1.5
    progress.rows.append({"steps": 4, "epoch": 1.25})
    assert progress.epochs(4) == pytest.approx(6 * 1.25 / 4)
    assert TrainingProgress(steps=6).batches(16) == 6
    assert TrainingProgress(steps=6, samples=160).batches(16) == 10
