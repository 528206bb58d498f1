"""The networks are what their names say (F5: a published ResNet-50 table was a ResNet-18)."""

from __future__ import annotations

import pytest
import torch

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load

SYNTHETIC = {"data": "synthetic", "batch_per_worker": 4}


def test_learning_rate_grows_with_the_workers_unless_it_is_given():
    def rate(world: int, **keys: float) -> float:
        workload = load(Trial(model="resnet8", **SYNTHETIC, **keys), Ranks(0, world))
        return workload.optimizer(workload.model.parameters()).param_groups[0]["lr"]

    assert (rate(1), rate(2), rate(2, learning_rate=0.3)) == (0.01, 0.02, 0.3)


@pytest.mark.parametrize("data", ["synthetic", "auto"])
def test_image_size_and_memory_format_reach_the_batch(data):
    trial = Trial(model="resnet8", data=data, batch_per_worker=4, image_size=48, memory_format="channels_last")
    workload = load(trial, Ranks())
    images, _ = next(workload.batches)
    assert images.shape == (4, 3, 48, 48)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert workload.loss(workload.model, (images, torch.zeros(4, dtype=torch.long))).isfinite()
