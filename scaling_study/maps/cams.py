"""Grad-CAM, HiResCAM and EigenCAM as the package grad-cam has them, at the resolution of the layer.         [torch]

Of the backbone's last stage and the logit of an instrument (Selvaraju et al., arXiv 1610.02391; Draelos and Carin,
arXiv 2011.08891). EigenCAM knows no class (Muhammad and Yeasin, arXiv 2008.00299). The instrument head ends in a global
maximum, so a gradient comes from the one place that its class map is highest at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_grad_cam import EigenCAM, GradCAM, HiResCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import nn

Maps = NDArray[np.float32]  # (n, h, w), each from 0 to 1
OF_A_CLASS = {"grad_cam": GradCAM, "hires_cam": HiResCAM}


class FromFeatures(nn.Module):
    """A Tripnet behind its backbone, whose last stage is then the input: its gradients need the heads alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.last_stage = model, nn.Identity()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(self.last_stage(features))
        return logits


def of_class(method: str, model: nn.Module, features: torch.Tensor, classes: Sequence[int]) -> Maps:
    """A map of its own class for each of `features`, (n, channels, h, w) of the backbone."""
    return _maps(OF_A_CLASS[method], model, features, classes)


def eigen(model: nn.Module, features: torch.Tensor) -> Maps:
    """A map of no class for each of `features`, (n, channels, h, w)."""
    return _maps(EigenCAM, model, features, [0] * len(features))


def _maps(kind: Any, model: nn.Module, features: torch.Tensor, classes: Sequence[int]) -> Maps:
    heads, given = FromFeatures(model), features.detach().requires_grad_()
    with kind(model=heads, target_layers=[heads.last_stage]) as cam:
        scaled = cam(input_tensor=given, targets=[ClassifierOutputTarget(number) for number in classes])
    maps: Maps = np.asarray(scaled, np.float32)
    return maps
