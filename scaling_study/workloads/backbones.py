"""Backbones of a Tripnet: an image classifier without what makes classes of its last features.              [torch]

    backbone             channels   features of 256 x 448   pixels                   weights: imagenet
    resnet18, resnet50   512, 2048  8 x 14                  ImageNet's mean and      torchvision's (version 1), below
    squeezenet           512        15 x 27                 deviation                DATA_ROOT/weights
    mobilenet_v2         320        8 x 14
    efficientnet_lite0   320        8 x 14                  (x - 127) / 128          an installed package

Layers that no head reads are not there: DDP and Horovod would wait for gradients of theirs. Of the last two that is
also the 1x1 convolution to 1280 channels. With frames of less than 256 pixels the last halving is left out (SqueezeNet
has one less anyway), so that maps stay fine: 8 x 14 at 128 x 224, 6 x 11 at 96 x 176.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from scaling_study.parts import BACKBONE, IMAGENET
from scaling_study.workloads import cifar10, efficientnet_lite0, weights
from scaling_study.workloads.efficientnet_lite0 import EfficientNetLite0
from scaling_study.workloads.weights import LITE0, PREFIX, TORCHVISION

FINE_BELOW = 256  # pixels of a frame's height
UNCOUNTED = "num_batches_tracked"  # of BatchNorm: older files have none, and nothing reads it
OF_IMAGENET = (tuple(255 * value for value in cifar10.MEAN), tuple(255 * value for value in cifar10.STD))
OF_LITE0 = ((efficientnet_lite0.MEAN,) * 3, (efficientnet_lite0.DEVIATION,) * 3)


@dataclass(frozen=True)
class Backbone:
    """Untrained layers, and what they want."""

    layers: nn.Module  # (b, 3, height, width) -> (b, channels, h, w)
    channels: int
    blocks: tuple[type[nn.Module], ...]  # what a sharded framework wraps one by one
    pixels: tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation of each channel, of values from 0 to 255


def backbone(name: str, height: int) -> Backbone:
    """Of frames so high; `name`: the model's, without `tripnet_`."""
    fine = height < FINE_BELOW
    if name == LITE0:
        whole = EfficientNetLite0(fine)
        layers = nn.Sequential(OrderedDict(stem=whole.stem, blocks=whole.blocks))
        return Backbone(layers, efficientnet_lite0.LAST, (efficientnet_lite0.Block,), OF_LITE0)
    from torchvision import models
    from torchvision.models.mobilenetv2 import InvertedResidual
    from torchvision.models.resnet import BasicBlock, Bottleneck
    from torchvision.models.squeezenet import Fire

    network = models.get_model(TORCHVISION[name], weights=None)
    if name == "squeezenet":
        return Backbone(_named(features=network.features), 512, (Fire,), OF_IMAGENET)
    if name == "mobilenet_v2":
        if fine:
            _not_halving(network.features[14])
        return Backbone(_named(features=network.features[:-1]), 320, (InvertedResidual,), OF_IMAGENET)
    if fine:
        _not_halving(network.layer4)
    kept = {part: layer for part, layer in network.named_children() if part not in ("avgpool", "fc")}
    return Backbone(_named(**kept), network.fc.in_features, (BasicBlock, Bottleneck), OF_IMAGENET)


def _named(**layers: nn.Module) -> nn.Sequential:
    """Layers in a row, whose weights keep the names that they have in the classifier."""
    return nn.Sequential(OrderedDict(layers))


def _not_halving(layers: nn.Module) -> None:
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d):
            layer.stride = (1, 1)


def places(layers: nn.Module, height: int, width: int) -> int:
    """How many there are in the map of a frame. Raises ValueError where a frame is too small."""
    was = layers.training
    layers.eval()
    try:
        with torch.no_grad():
            features: torch.Tensor = layers(torch.zeros(1, 3, height, width))
    except RuntimeError as error:
        raise ValueError(f"frames of {height} x {width} pixels are too small: {str(error).splitlines()[0]}") from error
    layers.train(was)
    return features.shape[2] * features.shape[3]


def begin(layers: nn.Module, name: str, asked: str) -> dict[str, Any]:
    """Put the weights that a trial asks for, `imagenet` or a file's, into a backbone; what the record says of them.

    A file has a backbone's weights by torchvision's names, or those of a whole Tripnet (best.pt of a training), of
    which the backbone is taken. Raises SystemExit where it is not there, or of another model.
    """
    path = weights.imagenet_file(name) if asked == IMAGENET else weights.path_of(asked)
    if not path.is_file():
        how = f"python -m scaling_study.workloads.weights {PREFIX}{name} fetches it" if asked == IMAGENET else ""
        raise SystemExit(f"--weights {asked}: there is no {path}" + (f"; {how}" if how else ""))
    read = weights.read(path, asked)
    if name == LITE0 and asked == IMAGENET:
        read = {efficientnet_lite0.renamed(key): value for key, value in read.items()}
    of_tripnet = {k.removeprefix(f"{BACKBONE}."): v for k, v in read.items() if k.startswith(f"{BACKBONE}.")}
    ours, theirs = layers.state_dict(), of_tripnet or {k: v for k, v in read.items() if not _dropped(name, k)}
    theirs.update({key: value for key, value in ours.items() if key.endswith(UNCOUNTED) and key not in theirs})
    for key in (*ours, *(key for key in theirs if key not in ours)):
        if why := weights.difference(ours, theirs, key):
            raise SystemExit(f"--weights {asked} is of another model than {PREFIX}{name}: {why}")
    layers.load_state_dict(theirs)
    return {"file": asked, "sha256": weights.digest(path), "classifier": "left out"}


def _dropped(name: str, key: str) -> bool:
    """Whether a weight of the classifier is of a layer that the backbone does not have."""
    last = {"mobilenet_v2": ("classifier.", "features.18."), LITE0: ("classifier.", "head.")}
    return key.startswith(last.get(name, ("fc.", "classifier.")))
