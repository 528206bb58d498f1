"""What a Tripnet's maps are, by hand and by the package grad-cam; and that maps of something else are seen (F12)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from scaling_study.maps import scored
from scaling_study.workloads.surgical_scenes.triplets import TRIPLETS
from scaling_study.workloads.tripnet import Tripnet

GRID = (3, 5)


class Hidden(Tripnet):
    """Draws six channels of what its instrument head hides, as a published study did."""

    def class_maps(self, frames: torch.Tensor) -> torch.Tensor:
        return self.instrument.layers[:-1](self.features(frames))[:, :6]


def tiny(kind: type[Tripnet] = Tripnet) -> Tripnet:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
    return kind(backbone, 8, GRID[0] * GRID[1], torch.tensor(TRIPLETS)).eval()


@pytest.fixture
def frames() -> torch.Tensor:
    return torch.randn(4, 3, 6, 10, generator=torch.Generator().manual_seed(1))


def test_class_maps_have_the_heads_scores_as_their_maxima(frames: torch.Tensor) -> None:
    model = tiny()
    seen = scored.activation(model, frames)
    logits = model(frames)[:, :6].detach().numpy()
    np.testing.assert_allclose(seen.own.max((2, 3)), logits, rtol=1e-5)
    np.testing.assert_allclose(seen.probability, 1 / (1 + np.exp(-logits)), rtol=1e-5)
    assert seen.channels == "class" and seen.grid == GRID


def test_a_model_whose_class_maps_are_hidden_channels_is_seen(frames: torch.Tensor) -> None:
    assert scored.activation(tiny(Hidden), frames).channels == "hidden"


def test_f12s_choice_is_the_hidden_channel_of_the_least_likely_class(frames: torch.Tensor) -> None:
    model = tiny()
    hidden = model.instrument.layers[:-1](model.backbone(frames)).detach()
    least = model(frames)[:, :6].argmin(1)
    wanted = torch.stack([hidden[frame, channel] for frame, channel in enumerate(least)])
    np.testing.assert_allclose(scored.activation(model, frames).hidden, wanted.numpy(), rtol=1e-5)


def test_grad_cam_and_hires_cam_are_those_by_hand(frames: torch.Tensor) -> None:
    model, classes = tiny(), [2, 0, 5, 2]
    features = model.backbone(frames).detach().requires_grad_()
    model(features)[torch.arange(4), classes].sum().backward()
    gradient = features.grad
    by_hand = {"grad_cam": (gradient.mean((2, 3), keepdim=True) * features), "hires_cam": gradient * features}
    for method, weighted in by_hand.items():
        wanted = weighted.sum(1).relu().detach().numpy()
        wanted -= wanted.min((1, 2), keepdims=True)
        wanted /= wanted.max((1, 2), keepdims=True) + 1e-7
        np.testing.assert_allclose(scored.cam(method, model, model.backbone(frames), classes), wanted, atol=1e-4)


def test_eigen_cam_is_the_first_component_of_the_features(frames: torch.Tensor) -> None:
    model = tiny()
    features = model.backbone(frames).detach().flatten(2).transpose(1, 2)  # (n, places, channels)
    features = features - features.mean(1, keepdim=True)
    found = scored.cam("eigen_cam", model, model.backbone(frames), [0] * 4)
    for frame, ours in zip(features, found, strict=True):
        first = torch.linalg.svd(frame)[2][0]
        projected = (frame @ first).relu().view(GRID), (-frame @ first).relu().view(GRID)
        assert any(np.allclose(ours, one / one.max(), atol=1e-4) for one in projected), "of either sign"
