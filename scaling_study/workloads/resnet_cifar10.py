"""ResNets on CIFAR-10, as the published Horovod study trained them, or on a tree of images; a perceptron.  [torch]

resnet18 and resnet50 are torchvision's with 10 classes: 11,181,642 and 23,528,522 parameters, the stock ImageNet stem
on 32x32 images, weights from scratch. resnet8 is the test size: He et al. (arXiv 1512.03385, section 4.2) with n = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10
from scaling_study.workloads.images import image_data, laid_out, tree_data
from scaling_study.workloads.workload import Workload, classifier_chain, classifier_loss, memory_layout, weights_dtype

LEARNING_RATE, MOMENTUM = 0.01, 0.5  # published: lr 0.01 x workers, momentum 0.5


def load(trial: Trial, ranks: Ranks) -> Workload:
    layout, dtype = memory_layout(trial), weights_dtype(trial)
    rate = trial.learning_rate or LEARNING_RATE * ranks.world_size
    read = tree_data if trial.data == "images" else image_data
    data = read(trial, ranks, lambda batch: laid_out(batch, trial.image_size, layout, dtype))
    model = network(trial.model, data.classes).to(ranks.device).to(memory_format=layout)
    return Workload.of(
        trial,
        data,
        model=model,
        loss=classifier_loss(trial, ranks),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM),
        blocks=blocks(trial.model),
        chain=classifier_chain(trial, layers_of),
        notes=convolved_on(ranks.device),
    )


def blocks(name: str) -> tuple[type[nn.Module], ...]:
    """The residual blocks: what a sharded framework wraps one by one."""
    if name.startswith("resnet8"):
        return (Block,)
    from torchvision.models.resnet import BasicBlock, Bottleneck

    return BasicBlock, Bottleneck


def layers_of(model: Any) -> dict[str, nn.Module]:
    """Stem, each residual block, head."""
    if isinstance(model, ResNet8):
        stem, stages, last = model.stem, {"blocks": model.blocks}, model.classifier
    else:
        stem = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
        stages = {name: getattr(model, name) for name in ("layer1", "layer2", "layer3", "layer4")}
        last = model.fc
    body = {f"{name}.{number}": block for name, stage in stages.items() for number, block in enumerate(stage)}
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)
    return {"stem": stem, **body, "head": head}


def convolved_on(device: torch.device) -> list[str]:
    """Let cuDNN try its algorithms in the warm-up, as shapes never change; a note where convolutions round fp32.

    On some GPUs torch lets them round to TF32 unless told not to.
    """
    torch.backends.cudnn.benchmark = True
    rounds = (
        device.type == "cuda" and torch.backends.cudnn.allow_tf32 and torch.cuda.get_device_capability(device)[0] >= 8
    )
    return ["fp32 convolutions compute in TF32, torch's default on this GPU"] if rounds else []


def network(name: str, classes: int = cifar10.CLASSES) -> nn.Module:
    if name == "resnet8":
        return ResNet8(classes)
    if name == "resnet8_groupnorm":  # no sample sees another's: what 16-bit gradients cost is not drowned in chaos
        return ResNet8(classes, lambda channels: nn.GroupNorm(8, channels))
    from torchvision import models  # a second to import: resnet8 does without

    return getattr(models, name)(num_classes=classes)  # type: ignore[no-any-return]


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


WIDTH, DEPTH = 4096, 4
MLP_LEARNING_RATE = 1e-4  # x workers


class Layer(nn.Module):
    """(b, inputs) -> (b, WIDTH)."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.linear(x))


def load_mlp(trial: Trial, ranks: Ranks) -> Workload:
    """A wide perceptron: much state and little compute, so that what sharding saves can be seen.

        (b, 3, 32, 32) --flatten--> 3072 --Linear, ReLU--> 4096 --4 x (Linear, ReLU)--> 4096 --Linear--> 10

    79,753,226 parameters: with gradients and Adam's two moments 1.19 GiB of state in fp32. No sample sees another's.
    """
    inputs = 3 * cifar10.SIDE**2
    layers = [Layer(inputs), *(Layer(WIDTH) for _ in range(DEPTH))]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(WIDTH, cifar10.CLASSES)).to(ranks.device)
    rate, dtype = trial.learning_rate or MLP_LEARNING_RATE * ranks.world_size, weights_dtype(trial)

    def of_mlp(model: Any) -> dict[str, nn.Module]:
        _, *hidden, last = model  # flattening is no layer: it has nothing to compute
        return {**{f"layer{number}": layer for number, layer in enumerate(hidden)}, "head": last}

    data = image_data(trial, ranks, lambda batch: (batch[0].to(dtype), batch[1]))
    return Workload.of(
        trial,
        data,
        model=model,
        loss=classifier_loss(trial, ranks),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=rate),
        blocks=(Layer,),
        chain=classifier_chain(trial, of_mlp, inputs=lambda batch: batch[0].flatten(1)),
    )
