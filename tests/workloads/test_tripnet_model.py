"""Tripnet has the published layers, and a frozen backbone stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scaling_study.workloads import tripnet
from scaling_study.workloads.surgical_scenes.triplets import TRIPLETS
from scaling_study.workloads.tripnet import Tripnet

WHICH = torch.tensor(TRIPLETS)


def small(frozen: bool = False) -> Tripnet:
    torch.manual_seed(1)
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU())
    return Tripnet(backbone, 8, 4 * 6, WHICH, frozen)


@pytest.mark.parametrize(("normalised", "parameters"), [(True, 12_261_330), (False, 12_261_268)])
def test_parameter_counts_are_the_published_ones(normalised: bool, parameters: int) -> None:
    backbone = tripnet.backbone("resnet18", 256)
    model = Tripnet(backbone.layers, backbone.channels, 8 * 14, WHICH, normalised=normalised)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters


def test_the_heads_columns_stand_in_the_order_of_the_labels() -> None:
    model = small().eval()
    frames = torch.randn(2, 3, 16, 24)
    features = model.features(frames)
    maps = model.class_maps(frames)
    logits = model(frames)
    assert maps.shape == (2, 6, 4, 6) and logits.shape == (2, 131)
    assert logits[:, :6].equal(maps.amax((2, 3)))
    assert logits[:, 6:16].equal(model.verb(features, maps)) and logits[:, 16:31].equal(model.target(features, maps))
    assert model(features).equal(logits), "features in the place of frames"


def test_a_triplet_is_scored_by_its_own_components() -> None:
    model = small()
    triplet = model.triplet.eval()
    with torch.no_grad():
        for matrix in triplet.matrices:
            matrix.copy_(torch.eye(len(matrix)))
        triplet.linear.weight.copy_(torch.eye(100))
        triplet.linear.bias.zero_()
    scores = [torch.arange(1.0, size + 1)[None] for size in (6, 10, 15)]
    expected = [(i + 1) * (v + 1) * (t + 1) for i, v, t in TRIPLETS]
    torch.testing.assert_close(triplet(*scores)[0], torch.tensor(expected, dtype=torch.float32), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_backbone_keeps_weights_and_statistics_and_the_heads_learn(frozen: bool) -> None:
    model = small(frozen)
    model.eval()
    model.train()  # as a training does after an evaluation
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    model(torch.randn(4, 3, 16, 24)).square().mean().backward()
    optimizer.step()
    moved = {name.split(".")[0] for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert moved == {"instrument", "verb", "target", "triplet"} | (set() if frozen else {"backbone"})
    assert model.backbone.training is not frozen and model.verb.training
