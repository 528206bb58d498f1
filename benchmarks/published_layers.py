"""When the gradients of the published models are there, from their layers' arithmetic: published_layers.csv.  [torch]

    python -m benchmarks.published_layers

The networks are torchvision's, on the meta device: shapes and no numbers. A layer's share of backward is its share of
the multiplications of forward (each layer's backward has about twice as many), the last layer first. What is not
multiplied (BatchNorm, activations, pooling) is taken to cost nothing; on a GPU it does not.
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import nn
from torchvision import models

OUT = Path(__file__).with_name("published_layers.csv")
COLUMNS = ("model", "parameter", "bytes", "share_of_backward")
# As tf_cnn_benchmarks has them: Inception V3 without its auxiliary classifier; its own side of the image.
NETWORKS = {
    "Inception V3": (lambda: models.inception_v3(aux_logits=False, init_weights=False), 299),
    "ResNet-101": (models.resnet101, 224),
    "ResNet-50": (models.resnet50, 224),
    "VGG-16": (lambda: models.vgg16(init_weights=False), 224),
}


def main() -> None:
    with OUT.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, (build, side) in NETWORKS.items():
            with torch.device("meta"):
                writer.writerows([name, *row] for row in arrivals(build(), side))


def arrivals(network: nn.Module, side: int) -> list[tuple[str, int, str]]:
    """(parameter, bytes in fp32, share of backward after which its gradient is there), in the order of arrival."""
    ran: list[tuple[str, nn.Module, int]] = []  # every layer with parameters, as forward comes to it
    for name, layer in network.named_modules():
        if list(layer.parameters(recurse=False)):
            layer.register_forward_hook(
                lambda layer, given, made, name=name: ran.append((name, layer, multiplications(layer, made)))
            )
    network(torch.empty(1, 3, side, side, device="meta"))
    total, done, rows = sum(count for _, _, count in ran), 0, []
    for name, layer, count in reversed(ran):
        done += count
        for word, parameter in reversed(list(layer.named_parameters(recurse=False))):
            rows.append((f"{name}.{word}", 4 * parameter.numel(), f"{done / total:.6f}"))
    return rows


def multiplications(layer: nn.Module, made: torch.Tensor) -> int:
    """Of one image's forward: each output of a convolution or a linear layer takes as many as a filter has weights."""
    if not isinstance(layer, nn.Conv2d | nn.Linear):
        return 0
    weights = layer.weight
    return made.numel() * weights.numel() // weights.shape[0]


if __name__ == "__main__":
    main()
