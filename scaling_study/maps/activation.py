"""What a Tripnet makes of frames: its probabilities and class maps, and what lies hidden before those.       [torch]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from scaling_study.records.maps import RIGHT

INSTRUMENTS = 6
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Activation:
    """Of n frames, on the host."""

    probability: Floats  # (n, 6)
    own: Floats  # (n, 6, h, w) logits, before the global maximum
    hidden: Floats  # (n, h, w): the channel of the head's hidden layer whose number is that of the least likely class
    channels: str  # whose maps `own` are: "class" where their maxima are the head's logits, else "hidden"
    features: torch.Tensor  # (n, channels, h, w) of the backbone, where they were computed

    @property
    def grid(self) -> tuple[int, int]:
        """(h, w)"""
        return self.own.shape[2], self.own.shape[3]


def of(model: Any, frames: torch.Tensor) -> Activation:
    """`model`: a Tripnet in evaluation; `frames`: (n, 3, height, width) as it is given them."""
    inputs: list[torch.Tensor] = []
    layer = _last_convolution(model.instrument)
    hook = layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    try:
        with torch.no_grad():
            features = model.backbone(frames)
            logits = model(features)[:, :INSTRUMENTS]
            own = model.class_maps(features)
    finally:
        hook.remove()
    hidden = inputs[0][torch.arange(len(frames)), logits.argmin(1)]
    same = torch.allclose(own.amax((2, 3)), logits, rtol=1e-3, atol=1e-3)
    arrays: list[Floats] = [tensor.float().cpu().numpy() for tensor in (logits.sigmoid(), own, hidden)]
    return Activation(arrays[0], arrays[1], arrays[2], RIGHT["channels"] if same else "hidden", features)


def _last_convolution(head: nn.Module) -> nn.Conv2d:
    """The one that makes the class maps. Raises ValueError where there is none."""
    layers = [layer for layer in head.modules() if isinstance(layer, nn.Conv2d) and layer.out_channels == INSTRUMENTS]
    if not layers:
        raise ValueError(f"its instrument head has no convolution with {INSTRUMENTS} channels, so it has no class maps")
    return layers[-1]
