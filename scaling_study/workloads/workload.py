"""The shape every workload has.                                                                        [torch]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from scaling_study.workloads.chain import Chain
from scaling_study.workloads.feed import Batch, Feed
from scaling_study.workloads.held_out import HeldOut
from scaling_study.workloads.loss_parts import LossParts

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


@dataclass
class Workload:
    """A model with its data, loss and optimiser, on one rank's device."""

    model: nn.Module
    loss: Callable[[nn.Module, Batch], torch.Tensor]  # scalar mean over the batch it is given, in the trial's precision
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer]  # the published one; of parameters, or groups of them
    batches: Feed  # endless; this rank's shard, in a new order each epoch
    samples_per_step: int  # of this rank
    steps_per_epoch: int
    data_source: str  # "cifar10" or "synthetic (why)"
    sample: str = "image"  # what one sample is, in a report's words
    tokens: Callable[[Batch], int | torch.Tensor] | None = None  # real ones of a batch; a tensor: no sync
    blocks: tuple[type[nn.Module], ...] = ()  # the layers that a sharded framework wraps one by one (F24)
    chain: Callable[[nn.Module], Chain] | None = None  # the model, layer by layer, for what cuts it into stages
    scales_rate: bool = True  # its own learning rate is multiplied by workers, which a training to a result takes back
    reshuffles: bool = True  # every epoch reads the samples in a new order; text is read as it runs
    loss_parts: LossParts | None = None  # of a loss that is a sum: what each part of it is, noted by `loss`
    parts: tuple[str, ...] = ()  # of the model, by the first words of its weights' names: groups of the optimiser
    grouped: Callable[[Iterable[nn.Parameter]], Iterable[Any]] = iter  # parameters as `optimizer` has them, in groups
    frozen: str = ""  # which of them is not trained, as the trial asks
    weights: Mapping[str, Any] = field(default_factory=dict)  # of the file that it begins with (weights.py)
    notes: list[str] = field(default_factory=list)
    accumulation: int = 1
    held_out: HeldOut | None = None  # what it is evaluated on; None: it can only be timed
    forward_flops_per_sample: float | None = None  # flops.py; None: not counted
    parameters: int = field(init=False)
    parameters_all: int = field(init=False)
    part_sizes: Mapping[str, int] = field(init=False)  # of each of `parts`, in parameters

    def __post_init__(self) -> None:
        # Trainable ones, counted and not assumed: a ResNet-18 under the name of a ResNet-50 shows (F5). Counted
        # before any framework wraps the model: behind some wrappers a rank sees its own shard only.
        self.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.parameters_all = sum(p.numel() for p in self.model.parameters())
        sizes = dict.fromkeys(self.parts, 0)
        for name, parameter in self.model.named_parameters() if self.parts else ():
            sizes[name.partition(".")[0]] += parameter.numel()
        self.part_sizes = sizes

    def samples_in(self, batch: Batch) -> int:
        """How many samples a batch really holds; 0 on a pipeline's ranks that leave counting to the last stage."""
        return len(batch[0]) if self.samples_per_step else 0

    def micro_batches(self, batch: Batch) -> Iterator[tuple[Batch, bool]]:
        """(micro-batch, whether it is the step's last) for each of `accumulation` equal parts of a batch."""
        if self.accumulation == 1:
            yield batch, True
            return
        parts = zip(*(tensor.chunk(self.accumulation) for tensor in batch), strict=True)
        for index, part in enumerate(parts, start=1):
            yield part, index == self.accumulation

    def share(self, model: nn.Module, micro_batch: Batch) -> torch.Tensor:
        """What a micro-batch adds to the loss of its batch: the shares of a step sum up to the batch's mean."""
        loss = self.loss(model, micro_batch)
        return loss if self.accumulation == 1 else loss / self.accumulation


def autocast(device: torch.device, precision: str) -> Any:
    """The context in which forward and loss compute at `precision` (fp32, fp64: as they are)."""
    return torch.autocast(device.type, dtype=DTYPES[precision], enabled=precision in ("bf16", "fp16"))
