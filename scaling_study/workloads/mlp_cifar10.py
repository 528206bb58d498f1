"""A wide perceptron on CIFAR-10: much state and little compute, so that what sharding saves can be seen.   [torch]

    (b, 3, 32, 32) --flatten--> 3072 --Linear, ReLU--> 4096 --4 x (Linear, ReLU)--> 4096 --Linear--> 10

79,753,226 parameters. With gradients and Adam's two moments that is 16 bytes each: 1.19 GiB of state in fp32, and a
step of some tenths of a second on one core. No normalisation: no sample sees another's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10
from scaling_study.workloads.images import image_data
from scaling_study.workloads.workload import Workload, classifier_chain, classifier_loss, weights_dtype

WIDTH, DEPTH = 4096, 4
LEARNING_RATE = 1e-4  # x workers


class Layer(nn.Module):
    """(b, inputs) -> (b, WIDTH)."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.linear(x))


def load(trial: Trial, ranks: Ranks) -> Workload:
    inputs = 3 * cifar10.SIDE**2
    layers = [Layer(inputs), *(Layer(WIDTH) for _ in range(DEPTH))]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(WIDTH, cifar10.CLASSES)).to(ranks.device)
    rate, dtype = trial.learning_rate or LEARNING_RATE * ranks.world_size, weights_dtype(trial)

    def layers_of(model: Any) -> dict[str, nn.Module]:
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
        chain=classifier_chain(trial, layers_of, inputs=lambda batch: batch[0].flatten(1)),
    )
