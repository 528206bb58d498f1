"""data_parallel/torch_ddp.py in pieces to exchange. As it stands it is right; each sibling plants one fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling_study import workloads
from scaling_study.measure import Phase, Wire, measure
from scaling_study.ranks import as_launched, join_torch
from scaling_study.records.store import RankReport
from scaling_study.trial import Trial
from scaling_study.worker.script import run


def train(
    trial: Trial,
    record: str | None = None,
    *,
    load: Callable[..., workloads.Workload] = workloads.load,
    wrap: Callable[[nn.Module], Any] = DistributedDataParallel,
    after_backward: Callable[[nn.Module], None] = lambda model: None,
    forget: Callable[[torch.optim.Optimizer], None] = torch.optim.Optimizer.zero_grad,
) -> RankReport:
    ranks = join_torch(trial)
    trial = as_launched(trial, ranks)
    workload = load(trial, ranks)
    model = wrap(workload.model)
    optimizer = workload.optimizer(model.parameters())
    phase, wire = Phase(ranks.device), Wire()

    def step(batch: workloads.Batch) -> torch.Tensor:
        loss = workload.share(model, batch)
        loss.backward()
        after_backward(model)
        optimizer.step()
        forget(optimizer)
        return loss.detach()

    return measure(step, workload, trial, ranks, optimizer=optimizer, phase=phase, wire=wire, record=record)


def average(model: nn.Module) -> None:
    """What DDP does, after backward: for a model that nobody wrapped."""
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
        parameter.grad /= torch.distributed.get_world_size()


if __name__ == "__main__":
    run("torch_ddp", train)
