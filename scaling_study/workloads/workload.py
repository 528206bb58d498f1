"""The shape every workload has.                                                                        [torch]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Batch = tuple[torch.Tensor, ...]


@dataclass
class Workload:
    """A model with its data, loss and optimiser, on one rank's device."""

    model: nn.Module
    loss: Callable[[nn.Module, Batch], torch.Tensor]  # scalar mean over the batch, in the trial's precision
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]  # the published one, rate scaled by workers
    batches: Iterator[Batch]  # endless; this rank's shard, in a new order each epoch
    samples_per_step: int  # of this rank
    steps_per_epoch: int
    data_source: str  # "cifar10" or "synthetic (why)"
    sample: str = "image"  # what one sample is, in a report's words
    tokens: Callable[[Batch], int] | None = None  # tokens in a batch, where samples have them
    notes: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        """Trainable parameters, counted and not assumed: a ResNet-18 under the name of a ResNet-50 shows (F5)."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


def autocast(device: torch.device, precision: str) -> Any:
    """The context in which forward and loss compute at `precision` (fp32: as they are)."""
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
