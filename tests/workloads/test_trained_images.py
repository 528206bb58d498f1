"""What outputs of a classifier count for."""

from __future__ import annotations

import torch
from torch import nn

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.held_out import classification, score


def test_accuracy_is_of_the_likeliest_class_and_of_the_five_likeliest() -> None:
    """Four samples of seven classes whose right one is the 1st, 5th, 6th and 7th likeliest; the last is not counted."""
    outputs = torch.arange(7.0, 0.0, -1.0).repeat(4, 1)
    metrics = classification(torch.device("cpu"), 7)
    real = torch.tensor([True, True, True, False])
    score(metrics, nn.Identity(), (outputs, torch.tensor([0, 4, 5, 6])), real, Ranks(), Trial())
    assert [float(metrics[name].compute()) for name in ("accuracy", "accuracy_top5")] == [1 / 3, 2 / 3]
