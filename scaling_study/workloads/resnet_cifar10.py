"""ResNets on CIFAR-10, as the published Horovod study trained them, or on a tree of images.               [torch]

resnet18 and resnet50 are torchvision's with 10 classes: 11,181,642 and 23,528,522 parameters, the stock
ImageNet stem on 32x32 images, weights from scratch. resnet8 is the test size: He et al. (arXiv 1512.03385,
section 4.2) with n = 1, small enough that a trial is seconds.

    data: images    DATA_PATH's tree (tree_data.py), as many classes as it has, 224 pixels unless image_size says other
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.datasets import NoData
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, inputs, tree_data
from scaling_study.workloads.feed import Batch, Feed, HeldOut, batches_of_indices, steps_per_epoch, to_train_on
from scaling_study.workloads.trained_images import trained_images
from scaling_study.workloads.tree import Reading, Samples
from scaling_study.workloads.workload import Chain, Workload, autocast

LEARNING_RATE, MOMENTUM = 0.01, 0.5  # published: lr 0.01 x workers, momentum 0.5
TREE_SIDE = 224  # pixels, of images of a tree; a parity gate's are as small as CIFAR-10's


def load(trial: Trial, ranks: Ranks) -> Workload:
    """Model and data on this rank's device; the same weights on every rank."""
    layout = torch.channels_last if trial.memory_format == "channels_last" else torch.contiguous_format
    rate = trial.learning_rate or LEARNING_RATE * ranks.world_size
    dtype = torch.float64 if trial.precision == "fp64" else torch.float32
    read = of_tree if trial.data == "images" else image_data
    data = read(trial, ranks, lambda batch: laid_out(batch, trial.image_size, layout, dtype))
    model = network(trial.model, data.classes).to(ranks.device).to(memory_format=layout)
    torch.backends.cudnn.benchmark = True  # shapes never change: let cuDNN try its algorithms in the warm-up

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        images, labels = batch  # (batch_per_worker, 3, side, side) float32, (batch_per_worker,) int64
        with autocast(ranks.device, trial.precision):
            return F.cross_entropy(model(images), labels, label_smoothing=trial.train_label_smoothing or 0.0)

    return Workload(
        model=model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM),
        batches=data.feed,
        samples_per_step=trial.batch_per_worker,
        steps_per_epoch=data.steps_per_epoch,
        data_source=data.source,
        held_out=data.held_out,
        blocks=blocks(trial.model),
        chain=lambda model: chain(model, trial.train_label_smoothing or 0.0),
        notes=[*data.notes, *on_this_gpu(ranks.device)],
    )


def blocks(name: str) -> tuple[type[nn.Module], ...]:
    """The residual blocks: what a sharded framework wraps one by one."""
    if name.startswith("resnet8"):
        return (Block,)
    from torchvision.models.resnet import BasicBlock, Bottleneck

    return BasicBlock, Bottleneck


def chain(model: Any, label_smoothing: float = 0.0) -> Chain:
    """Stem, each residual block, head."""
    if isinstance(model, ResNet8):
        stem, stages, last = model.stem, {"blocks": model.blocks}, model.classifier
    else:
        stem = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
        stages = {name: getattr(model, name) for name in ("layer1", "layer2", "layer3", "layer4")}
        last = model.fc
    body = {f"{name}.{number}": block for name, stage in stages.items() for number, block in enumerate(stage)}
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)
    return Chain(
        layers={"stem": stem, **body, "head": head},
        inputs=lambda batch: batch[0],
        target=lambda batch: batch[1],
        loss=partial(F.cross_entropy, label_smoothing=label_smoothing),
    )


def on_this_gpu(device: torch.device) -> list[str]:
    """What fp32 really means on this device: torch lets convolutions round to TF32 unless told not to."""
    rounds = (
        device.type == "cuda" and torch.backends.cudnn.allow_tf32 and torch.cuda.get_device_capability(device)[0] >= 8
    )
    return ["fp32 convolutions compute in TF32, torch's default on this GPU"] if rounds else []


def network(name: str, classes: int = cifar10.CLASSES) -> nn.Module:
    """An untrained network, by its trial key."""
    if name == "resnet8":
        return ResNet8(classes)
    if name == "resnet8_groupnorm":  # no sample sees another's: what 16-bit gradients cost is not drowned in chaos
        return ResNet8(classes, lambda channels: nn.GroupNorm(8, channels))
    from torchvision import models  # a second to import: resnet8 does without

    return getattr(models, name)(num_classes=classes)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ImageData:
    """A rank's batches, where they come from, and what is held out of a training to a result."""

    feed: Feed
    source: str
    steps_per_epoch: int
    held_out: HeldOut | None = None
    classes: int = cifar10.CLASSES
    notes: list[str] = field(default_factory=list)


def of_tree(trial: Trial, ranks: Ranks, shaped: Callable[[Batch], Batch]) -> ImageData:
    """A tree of images, each batch shaped for the model. Raises SystemExit for a folder that is none."""
    side = trial.image_size or (cifar10.SIDE if trial.find == "parity" else TREE_SIDE)
    read = tree_data.of_trained_tree if trial.trained else tree_data.of_tree
    data = read(tree_data.root(ranks), trial, ranks, side)
    steps = steps_per_epoch(data.samples, ranks.world_size, trial.batch_per_worker)
    held_out = data.held_out and shaped_split(data.held_out, shaped)
    return ImageData(shaped_feed(data.feed, shaped), data.name, steps, held_out, data.classes, data.notes)


def image_data(trial: Trial, ranks: Ranks, shaped: Callable[[Batch], Batch]) -> ImageData:
    """CIFAR-10, each batch shaped for the model. `auto` falls back to synthetic data by name, never silently."""
    if trial.trained:
        return _trained(trial, ranks, shaped)
    order = batches_of_indices(cifar10.SAMPLES, trial.seed, ranks.rank, ranks.world_size, trial.batch_per_worker)
    steps = steps_per_epoch(cifar10.SAMPLES, ranks.world_size, trial.batch_per_worker)
    real, source = None, "synthetic (asked for)"
    try:
        if trial.data != "synthetic":
            real, source = cifar10.images_and_labels(), "cifar10"
    except NoData as error:
        if trial.data == "cifar10":
            raise SystemExit(f"--data cifar10: {error}") from error
        source = "synthetic (CIFAR-10 not found)"
    if library := inputs.library(trial):
        samples = Samples.in_memory(*(real or synthetic_samples(trial.seed)))
        reading = Reading.of(trial, ranks, trial.image_size or cifar10.SIDE)
        feed = inputs.feed(library, samples, order, steps, reading)
    else:
        feed = cifar10.feed(*real, order, ranks.device) if real else Feed(order, synthetic(trial, ranks))
    return ImageData(shaped_feed(feed, shaped), source, steps)


def shaped_feed(feed: Feed, shaped: Callable[[Batch], Batch]) -> Feed:
    """The feed, each of whose batches is shaped for the model."""
    fetch = feed.fetch
    feed.fetch = lambda ids: shaped(fetch(ids))
    return feed


def shaped_split(held_out: HeldOut, shaped: Callable[[Batch], Batch]) -> HeldOut:
    return replace(held_out, fetch=lambda split, places: shaped(held_out.fetch(split, places)))


def _trained(trial: Trial, ranks: Ranks, shaped: Callable[[Batch], Batch]) -> ImageData:
    """Raises SystemExit where there is no real data: synthetic data has no result to train to."""
    train, test = to_train_on(trial, lambda: (cifar10.images_and_labels(), cifar10.images_and_labels(train=False)))
    data = trained_images(train, test, cifar10.normalising(ranks.device), trial, ranks)
    held_out = shaped_split(data.held_out, shaped)
    return ImageData(shaped_feed(data.feed, shaped), "cifar10", data.steps_per_epoch, held_out)


def synthetic(trial: Trial, ranks: Ranks) -> Callable[[torch.Tensor], Batch]:
    """Seeded random images of the data's shape.

    One batch, resident on the device and read again each step: it costs nothing, which is its purpose. Only where
    every sample must be distinct (parity) does each id have an image of its own.
    """
    side = trial.image_size or cifar10.SIDE

    def drawn(seed: int, samples: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(samples, 3, side, side, generator=generator).to(ranks.device)
        return images, torch.randint(cifar10.CLASSES, (samples,), generator=generator).to(ranks.device)

    def own(ids: torch.Tensor) -> Batch:
        images, labels = zip(*(drawn(trial.seed * 1_000_003 + int(id), 1) for id in ids), strict=True)
        return torch.cat(images), torch.cat(labels)

    if trial.find == "parity":
        return own
    resident = drawn(trial.seed * 1_000_003 + ranks.rank, trial.batch_per_worker)
    return lambda ids: resident


def synthetic_samples(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Seeded random bytes in the place of CIFAR-10's, each image its own: for a library that is to read them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (cifar10.SAMPLES, 3, cifar10.SIDE, cifar10.SIDE)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    return images, torch.randint(cifar10.CLASSES, (cifar10.SAMPLES,), generator=generator)


def laid_out(batch: Batch, side: int | None, layout: torch.memory_format, dtype: torch.dtype) -> Batch:
    """A batch of images of any size as a model is to see them; `side` in pixels, None: as they are."""
    images, labels = batch
    if side and images.shape[-1] != side:
        images = F.interpolate(images, size=(side, side), mode="bilinear", antialias=False)
    return images.to(dtype=dtype, memory_format=layout), labels


Norm = Callable[[int], nn.Module]  # channels -> the layer that normalises them


class ResNet8(nn.Module):
    """3x3 stem, then one residual block at each of 16, 32, 64 channels: (b, 3, 32, 32) -> (b, classes)."""

    def __init__(self, classes: int = cifar10.CLASSES, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, 16, norm), nn.ReLU(inplace=True))  # (b, 16, 32, 32)
        self.blocks = nn.Sequential(  # (b, 64, 8, 8)
            Block(16, 16, 1, norm), Block(16, 32, 2, norm), Block(32, 64, 2, norm)
        )
        self.classifier = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.blocks(self.stem(images)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, a 1x1 projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(inputs, outputs, norm, stride), nn.ReLU(inplace=True), _convolution(outputs, outputs, norm)
        )
        same = inputs == outputs
        self.shortcut = nn.Identity() if same else _convolution(inputs, outputs, norm, stride, side=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def _convolution(inputs: int, outputs: int, norm: Norm, stride: int = 1, side: int = 3) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)
    return nn.Sequential(convolution, norm(outputs))
