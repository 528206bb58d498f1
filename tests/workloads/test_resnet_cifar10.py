"""The networks are what their names say (F5: a published ResNet-50 table was a ResNet-18)."""

from __future__ import annotations

import pytest
import torch

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import load

SYNTHETIC = {"data": "synthetic", "batch_per_worker": 4}


@pytest.mark.parametrize(
    ("model", "parameters"),
    [("resnet8", 78_042), ("resnet8_groupnorm", 78_042), ("resnet18", 11_181_642), ("resnet50", 23_528_522)],
)
def test_parameter_counts(model, parameters):
    assert load(Trial(model=model, **SYNTHETIC), Ranks()).parameters == parameters


def test_the_same_seed_gives_the_same_weights_and_another_does_not():
    a, b, c = (load(Trial(model="resnet8", seed=seed, **SYNTHETIC), Ranks()).model.state_dict() for seed in (1, 1, 2))
    assert all(a[name].equal(b[name]) for name in a)
    assert not a["classifier.weight"].equal(c["classifier.weight"])


@pytest.mark.parametrize(("model", "precision"), [("resnet8", "fp32"), ("resnet8", "bf16"), ("resnet18", "fp32")])
def test_a_few_steps_lower_the_loss(model, precision):
    torch.set_num_threads(1)
    workload = load(Trial(model=model, precision=precision, learning_rate=0.05, **SYNTHETIC), Ranks())
    optimizer = workload.optimizer(workload.model.parameters())
    losses = []
    for _ in range(8):
        loss = workload.loss(workload.model, next(workload.batches))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


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
