"""What a training says of itself, also where it went wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import forked
import pytest
import torch
from tiny_cifar import tiny_cifar
from torch import nn

from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.train import log


def test_frozen_weights_are_a_group_at_a_rate_of_0() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert log.groups(optimizer, [0.1], model) == [
        {"name": "0", "parameters": 11, "learning_rate": 0.1},
        {"name": "asks for no gradient", "parameters": 6, "learning_rate": 0.0},
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


@pytest.mark.slow
def test_a_training_that_diverges_is_recorded_as_one(tmp_path: Path) -> None:
    flags = ["--model", "resnet8", "--device", "cpu", "--cores-per-worker", "1", "--batch-per-worker", "40",
             "--train-steps", "6", "--train-evaluate-every", "0.34", "--train-optimizer", "sgd",
             "--learning-rate", "1e30", "--train-target", "accuracy=0.9",
             "--record", str(tmp_path / "record")]  # fmt: skip
    with tiny_cifar(tmp_path / "data") as data:
        done = forked.run([sys.executable, str(CHECKOUT / "data_parallel/single.py"), *flags], {"DATA_ROOT": str(data)})
    assert done.returncode == 0, done.stderr[-3000:]
    (rank,) = store.read_ranks(tmp_path / "record", 1)
    assert rank.training["ended_by"] == "diverged" and rank.training["reached"] is None
    assert rank.training["rows"][-1]["train_loss"] is None
