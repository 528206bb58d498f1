"""What a user of Lightning writes: a step, a validation step, an optimiser with its schedule, and data.     [torch]"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule

from scaling_study import train
from scaling_study.measure.training import share_buffers
from scaling_study.train import evaluate
from scaling_study.workloads import Batch, Workload

STEPS_MADE = "steps_made"


class Module(LightningModule):
    """The workload of a training loop, whose Trainer calls its steps."""

    def __init__(self, loop: train.Loop) -> None:
        super().__init__()
        self.model, self.loop, self.scores = loop.workload.model, loop, dict[str, float]()

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(*inputs)  # where it is tested: FSDP gathers weights for whoever calls its outermost module

    def training_step(self, batch: Batch) -> torch.Tensor:
        loss = self.loop.workload.loss(self.model, batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_validation_epoch_start(self) -> None:
        share_buffers(self.model, self.loop.ranks)
        self.metrics = self.loop.held_out.metrics()

    def validation_step(self, batch: tuple[Batch, torch.Tensor]) -> None:
        self.loop.held_out.update(self.metrics, self.model, *batch)

    def on_validation_epoch_end(self) -> None:
        self.scores = evaluate.reduced(self.metrics, self.loop.ranks)  # self.log's would be a mean of ranks (F27)
        self.log_dict({f"validation_{name}": value for name, value in self.scores.items()}, sync_dist=True)

    def configure_optimizers(self) -> Any:
        loop, optimizer = self.loop, self.loop.training.optimizer
        schedule = train.schedule(loop.trial, loop.workload, steps=loop.progress.steps)
        assert schedule is not None
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule(optimizer), "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[STEPS_MADE] = self.loop.progress.steps  # its global_step counts from where it went on


class Epoch:
    """The batches of an epoch, of which Lightning knows how many there are."""

    def __init__(self, workload: Workload, asked: Callable[[], None]) -> None:
        """`asked` is called before each step's batch is made."""
        self.workload, self.asked = workload, asked

    def __len__(self) -> int:
        return self.workload.steps_per_epoch * self.workload.accumulation

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.workload.steps_per_epoch):
            self.asked()
            yield from (part for part, _ in self.workload.micro_batches(next(self.workload.batches)))


class Validation:
    """This rank's share of the validation split, anew for each evaluation."""

    def __init__(self, loop: train.Loop) -> None:
        self.loop = loop

    def __iter__(self) -> Iterator[tuple[Batch, torch.Tensor]]:
        return evaluate.batches(self.loop.held_out, "validation", self.loop.ranks)
