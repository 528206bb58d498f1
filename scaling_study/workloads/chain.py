"""A model as a chain of layers: what a pipeline needs to know to cut it into stages.                     [torch]

    batch --inputs--> layer 1 --> layer 2 --> ... --> layer n --output--> loss(output, target)
                        ^           ^                    ^
                        +-----------+--- extras(batch) --+      the same for every layer, as keyword arguments

The layers hold the model's own parameters, so that a stage trains what the unsplit model would. A parameter that
no layer holds would silently never be trained (F15): `chain.py` only describes, scaling_study/stages refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from scaling_study.workloads.feed import Batch


def nothing(batch: Batch) -> dict[str, torch.Tensor]:
    return {}


@dataclass(frozen=True)
class Chain:
    """The same computation as `Workload.loss(model, batch)`, layer by layer.

    Each layer takes one tensor, whose first dimension is the sample, and gives one to the next.
    """

    layers: Mapping[str, nn.Module]  # in order, by a name that a person recognises: "stem", "layer1.0"
    inputs: Callable[[Batch], torch.Tensor]  # what the first layer is fed, (batch, ...)
    target: Callable[[Batch], torch.Tensor]  # what the loss compares with, (batch, ...)
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (output, target) -> scalar mean
    extras: Callable[[Batch], dict[str, torch.Tensor]] = nothing  # each (batch, ...): cut into micro-batches too

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch by the unsplit chain: equal to the workload's own, bit by bit."""
        output, extras = self.inputs(batch), self.extras(batch)
        for layer in self.layers.values():
            output = layer(output, **extras)
        return self.loss(output, self.target(batch))
