"""Tripnet: which instrument does what to what, in a frame of an operation.                                 [torch]

    frames (b, 3, height, width)
      | backbone                features (b, channels, h, w)
      |   instrument            class maps (b, 6, h, w) --global max--> (b, 6)      where it looks: weakly supervised
      |   verb, target          features and class maps -> (b, 10), (b, 15)         guided by where the instruments are
      |   triplet               a matrix for each, outer product (6, 10, 15), its 100 valid entries -> (b, 100)
      v
    logits (b, 131): instrument, verb, target, triplet

Nwoye et al., MICCAI 2020 (arXiv 2007.05405). At 256 x 448 ResNet-18 and the heads have 12,261,330 parameters;
12,261,268 without the batch normalisation of each component's projected scores. Verb and target heads end in a linear
layer over all places of the map, so their size is that of the frames.
"""

from __future__ import annotations

import torch
from torch import nn

INSTRUMENTS, VERBS, TARGETS, TRIPLETS = 6, 10, 15, 100
SIZES = (INSTRUMENTS, VERBS, TARGETS, TRIPLETS)  # columns of logits and labels
WIDTH = 64  # channels inside a head


class Instrument(nn.Module):
    """Class maps of the instruments: (b, channels, h, w) -> (b, 6, h, w)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ELU(),
            nn.Conv2d(WIDTH, INSTRUMENTS, 1),
        )  # fmt: skip

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers(features)  # type: ignore[no-any-return]


class Guided(nn.Module):
    """Verbs, or targets: (b, channels, h, w) and the instruments' class maps (b, 6, h, w) -> (b, classes)."""

    def __init__(self, channels: int, places: int, classes: int) -> None:
        super().__init__()
        self.context = nn.Conv2d(channels, WIDTH, 3, padding=1)
        self.layers = nn.Sequential(
            nn.BatchNorm2d(WIDTH + INSTRUMENTS), nn.ELU(),
            nn.Conv2d(WIDTH + INSTRUMENTS, WIDTH, 1), nn.BatchNorm2d(WIDTH), nn.ELU(),
            nn.Flatten(), nn.Linear(WIDTH * places, classes),
        )  # fmt: skip

    def forward(self, features: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([self.context(features), maps], dim=1))  # type: ignore[no-any-return]


class Triplet(nn.Module):
    """Triplets from the scores of their components: (b, 6), (b, 10), (b, 15) -> (b, 100)."""

    valid: torch.Tensor

    def __init__(self, triplets: torch.Tensor, normalised: bool = True) -> None:
        super().__init__()
        sizes = SIZES[:3]
        self.matrices = nn.ParameterList(nn.Parameter(torch.randn(size, size) * size**-0.5) for size in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) if normalised else nn.Identity() for size in sizes)
        self.linear = nn.Linear(TRIPLETS, TRIPLETS)
        instruments, verbs, targets = triplets.T
        self.register_buffer("valid", (instruments * VERBS + verbs) * TARGETS + targets)  # (100,) places in the product

    def forward(self, *scores: torch.Tensor) -> torch.Tensor:
        projected = (
            norm(score @ matrix) for norm, score, matrix in zip(self.norms, scores, self.matrices, strict=True)
        )
        product = torch.einsum("bi,bv,bt->bivt", *projected).flatten(1)
        return self.linear(product[:, self.valid])  # type: ignore[no-any-return]


class Tripnet(nn.Module):
    """`triplets`: (100, 3) int64, instrument, verb and target of each. `frozen`: the backbone is not trained."""

    def __init__(
        self, backbone: nn.Module, channels: int, places: int, triplets: torch.Tensor, frozen: bool = False,
        normalised: bool = True,
    ) -> None:  # fmt: skip
        """`places`: of a map, h x w. `normalised`: the components' projected scores are, before their product."""
        super().__init__()
        self.backbone = backbone
        self.instrument = Instrument(channels)
        self.verb = Guided(channels, places, VERBS)
        self.target = Guided(channels, places, TARGETS)
        self.triplet = Triplet(triplets, normalised)
        self.frozen = frozen
        if frozen:
            backbone.requires_grad_(False)
            self.train()

    def train(self, mode: bool = True) -> Tripnet:
        """A frozen backbone stays in evaluation: BatchNorm's statistics are weights too."""
        super().train(mode)
        self.backbone.train(mode and not self.frozen)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Frames (b, 3, height, width), or the features (b, channels, h, w) of a frozen backbone -> (b, 131) logits."""
        features = self.features(x)
        maps = self.instrument(features)
        instrument = maps.amax(dim=(2, 3))
        verb, target = self.verb(features, maps), self.target(features, maps)
        return torch.cat([instrument, verb, target, self.triplet(instrument, verb, target)], dim=1)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Of the backbone; what is that already stays as it is."""
        if x.shape[1] != 3:
            return x
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self.backbone(x)  # type: ignore[no-any-return]

    def class_maps(self, x: torch.Tensor) -> torch.Tensor:
        """Of frames, or features: (b, 6, h, w) logits of the instrument head before its global maximum."""
        return self.instrument(self.features(x))  # type: ignore[no-any-return]
