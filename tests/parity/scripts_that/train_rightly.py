"""data_parallel/torch_ddp.py in pieces to exchange. As it stands it is right; each sibling plants one fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling_study import workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import run


def train_by(
    load: Callable[..., workloads.Workload] = workloads.load,
    wrap: Callable[[nn.Module], Any] = DistributedDataParallel,
    after_backward: Callable[[nn.Module], None] = lambda model: None,
    forget: Callable[[torch.optim.Optimizer], None] = torch.optim.Optimizer.zero_grad,
) -> None:
    def build(trial: Trial, ranks: Ranks) -> Training:
        workload = load(trial, ranks)
        model = wrap(workload.model)
        optimizer = workload.optimizer(model.parameters())

        def step(batch: workloads.Batch) -> torch.Tensor:
            loss = workload.share(model, batch)
            loss.backward()
            after_backward(model)
            optimizer.step()
            forget(optimizer)
            return loss.detach()

        return Training(step, workload, optimizer, Phase(ranks.device), Wire())

    run("torch_ddp", join_torch, build)


def average(model: nn.Module) -> None:
    """What DDP does, after backward: for a model that nobody wrapped."""
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
        parameter.grad /= torch.distributed.get_world_size()


if __name__ == "__main__":
    train_by()
