"""What is held out: a share of each class, never trained on, the same for every seed."""

from __future__ import annotations

import pytest
import torch

from scaling_study.workloads.held_out import stratified

LABELS = torch.arange(1003) % 10


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_splits_are_disjoint_and_whole_and_hold_each_class_alike(share: float) -> None:
    train, held_out = stratified(LABELS, share)
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(1003))
    assert all(abs(int((LABELS[held_out] == label).sum()) - share * 100) <= 1 for label in range(10))


def test_the_split_is_always_the_same() -> None:
    torch.manual_seed(5)
    assert torch.equal(stratified(LABELS, 0.1)[1], stratified(LABELS, 0.1)[1])
