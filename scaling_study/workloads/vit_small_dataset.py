"""A vision transformer for small data sets on CIFAR-10, as the published DeepSpeed study had it.            [torch]

    model                     patch  width  depth  heads  MLP   parameters
    vit_small_dataset           4     512     4      6    256    4,371,438
    vit_small_dataset_tiny      8     128     2      2    128      327,180    for tests

The network of Lee et al. (arXiv 2112.13492), written from the paper:

    images --shifted patches--> (b, 1 + patches, width) --depth x block--> class token --norm, linear--> classes

    shifted patches     the image and four copies, each moved by one pixel along an axis (zeros move in): 15 channels,
                        cut into patches, normalised, one linear layer: a token sees a pixel beyond its patch
    locality attention  softmax(exp(temperature) q k) v: the temperature is learned, from 1 / sqrt(width of a head)
                        on, and no token attends to itself
    block               x + attention(norm(x)), then x + mlp(norm(x))

The paper moves its copies by half a patch along the diagonals; this is the form that was published, and that is in use
as `vit-pytorch`. No BatchNorm and no pooling: no sample sees another's. A Sequential of named layers: cut between any
two, every parameter is in exactly one piece (F15). Published: AdamW with betas 0.8 and 0.999 and weight decay 3e-7 at
1e-4, the same for any number of workers (F19); studies/cifar10deepspeed.yaml has its one-cycle schedule.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.models import CLASSES
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10
from scaling_study.workloads.images import image_data, laid_out
from scaling_study.workloads.workload import Workload, classifier_chain, classifier_loss, weights_dtype

HEAD = 64  # width of an attention head
MOVES = ((0, 0), (0, -1), (0, 1), (-1, 0), (1, 0))  # (y, x): where each copy takes its first pixel from
CHANNELS = 3 * len(MOVES)


@dataclass(frozen=True)
class Size:
    patch: int  # pixels along its side
    width: int
    depth: int
    heads: int
    hidden: int  # width inside an MLP


SMALL = Size(patch=4, width=512, depth=4, heads=6, hidden=256)
TINY = Size(patch=8, width=128, depth=2, heads=2, hidden=128)  # the test size, with all that the small one has


class SmallVisionTransformer(nn.Sequential):
    """(b, 3, side, side) images -> (b, classes) logits, by layers named embedding, block1, ..., head.

    Raises ValueError for an image size that is no whole number of patches.
    """

    def __init__(self, size: Size, classes: int, image_size: int, dropout: float) -> None:
        if image_size % size.patch:
            raise ValueError(f"image size {image_size}: it must be a multiple of {size.patch}, the side of a patch")
        layers: dict[str, nn.Module] = {"embedding": Embedding(size, (image_size // size.patch) ** 2, dropout)}
        layers |= {f"block{number}": Block(size, dropout) for number in range(1, size.depth + 1)}
        layers["head"] = Head(size.width, classes)
        super().__init__(OrderedDict(layers))

    # forward is Sequential's; of SMALL at 32 pixels:
    #   (b, 3, 32, 32) -embedding-> (b, 65, 512) -4 blocks-> (b, 65, 512) -head-> (b, classes)


class Embedding(nn.Module):
    """(b, 3, side, side) images -> (b, 1 + patches, width): the class token first, each with where it is."""

    def __init__(self, size: Size, patches: int, dropout: float) -> None:
        super().__init__()
        self.patch, pixels = size.patch, CHANNELS * size.patch**2
        self.positions = nn.Parameter(torch.randn(1 + patches, size.width))
        self.class_token = nn.Parameter(torch.randn(1, size.width))
        self.project = nn.Sequential(nn.LayerNorm(pixels), nn.Linear(pixels, size.width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens: torch.Tensor = self.project(patches_of(shifted(images), self.patch))
        first = self.class_token.expand(len(tokens), -1, -1)
        every: torch.Tensor = self.dropout(torch.cat([first, tokens], dim=1) + self.positions)
        return every


def shifted(images: torch.Tensor) -> torch.Tensor:
    """(b, 3, side, side) -> (b, CHANNELS, side, side): each of MOVES beside the last, zeros where there is no pixel."""
    high, wide = images.shape[2:]
    padded = F.pad(images, (1, 1, 1, 1))
    return torch.cat([padded[..., 1 + y : 1 + y + high, 1 + x : 1 + x + wide] for y, x in MOVES], dim=1)


def patches_of(maps: torch.Tensor, patch: int) -> torch.Tensor:
    """(b, c, side, side) -> (b, patches, patch * patch * c): row by row; in a patch, the channels of a pixel last."""
    grid = maps.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # (b, c, rows, patch, columns, patch)
    tokens: torch.Tensor = grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    return tokens


class Block(nn.Module):
    """Mix tokens, then the channels of each: (b, tokens, width) -> the same shape."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(size, dropout)
        self.mlp = nn.Sequential(
            nn.LayerNorm(size.width),
            nn.Linear(size.width, size.hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(size.hidden, size.width),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Every token looks at all others, never at itself: (b, tokens, width) -> the same shape."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        inner = size.heads * HEAD
        self.heads, self.dropout = size.heads, dropout
        # A logarithm. Of shape (1,): DeepSpeed cannot partition a tensor without dimensions.
        self.temperature = nn.Parameter(torch.tensor([-0.5 * math.log(HEAD)]))
        self.norm, self.qkv = nn.LayerNorm(size.width), nn.Linear(size.width, 3 * inner, bias=False)
        self.project = nn.Sequential(nn.Linear(inner, size.width), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm(x))  # (b, tokens, 3 inner)
        q, k, v = qkv.unflatten(2, (3, self.heads, HEAD)).permute(2, 0, 3, 1, 4)  # 3 x (b, heads, tokens, HEAD)
        q = q * self.temperature.exp().to(q.dtype)  # in 16 bits too: torch would widen q to the temperature's
        others = ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        dropped = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=others, dropout_p=dropped, scale=1.0)
        return self.project(seen.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Head(nn.Module):
    """(b, tokens, width) -> (b, classes), from the class token alone."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm, self.classifier = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.norm(x[:, 0]))  # type: ignore[no-any-return]


SIZES = {"vit_small_dataset": SMALL, "vit_small_dataset_tiny": TINY}
DROPOUT = 0.1
LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-4, (0.8, 0.999), 3e-7  # the rate not x workers


def load(trial: Trial, ranks: Ranks) -> Workload:
    """Model and data on this rank's device; the same weights on every rank. Raises SystemExit."""
    side = trial.image_size or cifar10.SIDE
    asked = DROPOUT if trial.dropout is None else trial.dropout
    dropout = 0.0 if trial.find == "parity" else asked  # nothing random in what is compared
    try:
        model = SmallVisionTransformer(SIZES[trial.model], trial.classes or CLASSES, side, dropout)
    except ValueError as error:
        raise SystemExit(f"--model {trial.model}: {error}") from error
    rate, dtype = trial.learning_rate or LEARNING_RATE, weights_dtype(trial)
    data = image_data(trial, ranks, lambda batch: laid_out(batch, side, torch.contiguous_format, dtype))
    return Workload.of(
        trial,
        data,
        model=model.to(ranks.device),
        loss=classifier_loss(trial, ranks),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=rate, betas=BETAS, weight_decay=WEIGHT_DECAY),
        blocks=(Block,),
        scales_rate=False,
        chain=classifier_chain(trial),
    )
