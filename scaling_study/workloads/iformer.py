"""iFormer on images, as the published study trained it on CIFAR-10 at 224 pixels.                        [torch]

The Inception Transformer (Si et al., arXiv 2205.12956), written from the paper's tables.

    images --stem--> stage 1 --/2--> stage 2 --/2--> stage 3 --/2--> stage 4 --norm, mean--> linear --> classes
              side/4          side/8          side/16         side/32

    block   x + mixer(norm(x)), then x + mlp(norm(x))

              +- half of the high:   1x1 convolution, 3x3 depthwise, GELU -+
    channels -+- the other half:     3x3 max-pool, 1x1 convolution, GELU  -+- concatenated, fused -> channels
              +- low: average-pool, self-attention, up-sampling -----------+

iformer_small is the paper's: 19,485,194 parameters with 10 classes at 224 pixels, 533,120 of them position embeddings,
which are learned for one image size. The network is a Sequential of named layers: whatever cuts it between two of them
has every parameter in exactly one piece. A published pipeline lost its position embeddings (F15).

Published: AdamW at 1e-3, the same for 1 GPU and for 4, whose global batch was four times as large (F13). Between
LayerNorms maps lie channels-last in memory, whatever `memory_format` says: it decides for images, stem and weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.images import enlarged_data, laid_out, shaped_data
from scaling_study.workloads.resnet_cifar10 import convolved_on
from scaling_study.workloads.workload import Workload, classifier_chain, classifier_loss, memory_layout, weights_dtype

HEAD = 32  # channels of an attention head
MLP_RATIO = 4
INIT_STD = 0.02
MULTIPLE = 16  # of pixels: stages 1 and 2, of side/4 and side/8, are pooled by 2


@dataclass(frozen=True)
class StageShape:
    """One stage, of as many blocks as `attention` has numbers. Channels that do not attend are convolved and pooled."""

    width: int  # channels
    attention: tuple[int, ...]  # heads that attend in each block; fewer than width / HEAD
    pool: int = 1  # attention sees the map this many times smaller
    layer_scale: float | None = None  # where a learned scale of each residual starts; None: there is none


SMALL = (
    StageShape(96, (1,) * 3, pool=2),
    StageShape(192, (3,) * 3, pool=2),
    StageShape(320, (7,) * 4 + (9,) * 5, layer_scale=1e-6),
    StageShape(384, (11,) * 3, layer_scale=1e-6),
)
# The test size, with all that the small one has. Its scales do not start at 1e-6: behind those the first steps move a
# weight by 1e-10 of itself, and an untrained one would go unnoticed.
TINY = (
    StageShape(64, (1,), pool=2),
    StageShape(96, (1,), pool=2),
    StageShape(96, (1, 2), layer_scale=0.1),
    StageShape(128, (3,), layer_scale=0.1),
)


class InceptionTransformer(nn.Sequential):
    """(b, 3, side, side) images -> (b, classes) logits, by layers named stem, stage1_block1, ..., head.

    Raises ValueError for an image size that the pooled stages cannot halve.
    """

    def __init__(self, stages: Sequence[StageShape], classes: int, image_size: int = 224) -> None:
        if image_size % MULTIPLE:
            raise ValueError(f"image size {image_size}: it must be a multiple of {MULTIPLE}")
        side = image_size // 4
        layers: dict[str, nn.Module] = {"stem": Stem(stages[0].width, side)}
        for number, stage in enumerate(stages, start=1):
            if number > 1:
                side = -(-side // 2)
                layers[f"downsampling{number}"] = Downsampling(stages[number - 2].width, stage.width, side)
            for block, heads in enumerate(stage.attention, start=1):
                layers[f"stage{number}_block{block}"] = Block(stage, heads)
        layers["head"] = Head(stages[-1].width, classes)
        super().__init__(OrderedDict(layers))
        self.apply(_initialise)

    # forward is Sequential's; of SMALL at 224 pixels:
    #   (b, 3, 224, 224) -stem-> (b, 56, 56, 96) -3 blocks-> (b, 56, 56, 96)
    #   -downsampling2-> (b, 28, 28, 192) -3 blocks-> -downsampling3-> (b, 14, 14, 320) -9 blocks->
    #   -downsampling4-> (b, 7, 7, 384) -3 blocks-> -head-> (b, classes)


def _initialise(module: nn.Module) -> None:
    """Linear layers as the paper has them; convolutions as torch has them."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=INIT_STD)
        nn.init.zeros_(module.bias)


class Stem(nn.Module):
    """(b, 3, 4 side, 4 side) images -> (b, side, side, width), with where each token is."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *_halving(3, width // 2), nn.GELU(), *_halving(width // 2, width)
        )  # (b, width, side, side)
        self.position = _position(side, width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return _tokens(self.convolutions(images)) + self.position


class Downsampling(nn.Module):
    """(b, 2 side, 2 side, inputs) -> (b, side, side, width), with where each token is."""

    def __init__(self, inputs: int, width: int, side: int) -> None:
        super().__init__()
        self.convolution = nn.Sequential(*_halving(inputs, width))
        self.position = _position(side, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _tokens(self.convolution(_maps(x))) + self.position


class Block(nn.Sequential):
    """Mix tokens, then channels: (b, h, w, width) -> the same shape."""

    def __init__(self, stage: StageShape, heads: int) -> None:
        width, hidden = stage.width, MLP_RATIO * stage.width
        mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        mixing = Residual(Mixer(width, heads * HEAD, stage.pool), stage)
        super().__init__(OrderedDict(mixing=mixing, mlp=Residual(mlp, stage)))


class Residual(nn.Module):
    """x + scale * inner(norm(x)), with a scale for each channel where the stage has one (arXiv 2103.17239)."""

    def __init__(self, inner: nn.Module, stage: StageShape) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(stage.width, eps=1e-6), inner
        start = stage.layer_scale
        self.scale = None if start is None else nn.Parameter(torch.full((stage.width,), start))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(self.norm(x))
        return x + (y if self.scale is None else self.scale * y)


class Mixer(nn.Module):
    """(b, h, w, width) -> the same shape: the last `low` channels attend, of the others half convolve, half pool."""

    def __init__(self, width: int, low: int, pool: int) -> None:
        super().__init__()
        high, half = width - low, (width - low) // 2
        self.split = [half, half, low]
        self.convolve = nn.Sequential(
            nn.Conv2d(half, high, 1, bias=False),
            nn.Conv2d(high, high, 3, padding=1, groups=high, bias=False),
            nn.GELU(),
        )  # (b, high, h, w)
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(half, high, 1), nn.GELU())
        self.attend = Attention(low, pool)  # (b, low, h, w)
        wide = 2 * high + low
        self.fuse = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.project = nn.Conv2d(wide, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        convolved, pooled, low = _maps(x).split(self.split, dim=1)
        mixed = torch.cat([self.convolve(convolved), self.pool(pooled), self.attend(low)], dim=1)  # (b, wide, h, w)
        return _tokens(self.project(mixed + self.fuse(mixed)))


class Attention(nn.Module):
    """Every token of a `pool` times smaller map looks at all others: (b, low, h, w) -> the same shape.

    It has no projection of its own behind it: the mixer's mixes all channels.
    """

    def __init__(self, low: int, pool: int) -> None:
        super().__init__()
        self.heads, self.pool = low // HEAD, pool
        self.qkv = nn.Linear(low, 3 * low)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        small = F.avg_pool2d(maps, self.pool) if self.pool > 1 else maps  # (b, low, h / pool, w / pool)
        qkv = self.qkv(small.flatten(2).transpose(1, 2))  # (b, tokens, 3 low)
        q, k, v = qkv.unflatten(2, (3, self.heads, HEAD)).permute(2, 0, 3, 1, 4)  # 3 x (b, heads, tokens, HEAD)
        seen = F.scaled_dot_product_attention(q, k, v)
        small = seen.transpose(2, 3).flatten(1, 2).unflatten(2, small.shape[2:])  # (b, low, h / pool, w / pool)
        return F.interpolate(small, size=maps.shape[2:], mode="nearest") if self.pool > 1 else small


class Head(nn.Module):
    """(b, h, w, width) -> (b, classes): the mean of the normalised tokens, then one linear layer."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm, self.classifier = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.norm(x).mean(dim=(1, 2)))  # type: ignore[no-any-return]


def _halving(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """Half the side: 3x3 convolution (with a bias, though BatchNorm takes it out again: so has the paper's)."""
    return nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs)


def _position(side: int, width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(side, side, width), std=INIT_STD))


def _maps(x: torch.Tensor) -> torch.Tensor:
    """(b, h, w, c) -> (b, c, h, w): for convolutions, which find it channels-last in memory."""
    return x.permute(0, 3, 1, 2)


def _tokens(maps: torch.Tensor) -> torch.Tensor:
    """(b, c, h, w) -> (b, h, w, c), contiguous: for LayerNorm and linear layers, and to be sent to another stage."""
    return maps.permute(0, 2, 3, 1).contiguous()


LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-3, (0.9, 0.999), 0.01  # published: not x workers
MODELS = {"iformer_small": (SMALL, 224), "iformer_tiny": (TINY, 64)}  # stages, side of the images in pixels


def load(trial: Trial, ranks: Ranks) -> Workload:
    """Model and data on this rank's device; the same weights on every rank. Raises SystemExit."""
    stages, own_side = MODELS[trial.model]
    side = trial.image_size or own_side
    layout, dtype, rate = memory_layout(trial), weights_dtype(trial), trial.learning_rate or LEARNING_RATE
    data = shaped_data(enlarged_data(trial, ranks, side), lambda batch: laid_out(batch, None, layout, dtype))
    try:
        model = InceptionTransformer(stages, data.classes, side)
    except ValueError as error:
        raise SystemExit(f"--model {trial.model}: {error}") from error
    return Workload.of(
        trial,
        data,
        model=model.to(ranks.device).to(memory_format=layout),
        loss=classifier_loss(trial, ranks),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=rate, betas=BETAS, weight_decay=WEIGHT_DECAY),
        blocks=(Block,),
        scales_rate=False,
        chain=classifier_chain(trial),
        notes=convolved_on(ranks.device),
    )
