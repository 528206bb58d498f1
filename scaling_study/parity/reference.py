"""The training that every framework must reproduce: one process, plain PyTorch.                         [torch]

    for each step:   rank 0's batch -> forward, backward      its BatchNorm buffers are kept
                     rank 1's batch -> forward, backward      its own are dropped, as when each rank had a copy
                     ...
                     gradients / workers, one optimiser step

Each worker's shard goes through the model by itself, so that BatchNorm sees that shard and not the global batch: what
data parallelism does everywhere unless it is told to synchronise. Mean over the workers of gradients of means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from scaling_study import workloads
from scaling_study.measure.witness import EPOCHS, Weights
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import Batch, Workload


@dataclass
class Testimony:
    """What ranks left, or should have: the same shape from a framework and from the reference."""

    losses: list[list[float]]  # [rank][step]
    ids: list[torch.Tensor]  # [rank], (steps, batch)
    epochs: list[torch.Tensor]  # [rank], (EPOCHS, samples of that rank)
    frozen: list[str]
    weights: dict[str, Weights]  # "first", "one", "last" -> the model before, after one step, and after the last


def run(trial: Trial, steps: int) -> Testimony:
    """Train `steps` steps of the trial in this process."""
    device = torch.device(trial.device)
    trial = replace(trial, compile=False)
    shards = [loaded(trial, rank, device) for rank in range(trial.processes)]
    workload, model = shards[0], shards[0].model
    optimizer = workload.optimizer(model.parameters())
    losses: list[list[float]] = [[] for _ in shards]
    ids: list[list[torch.Tensor]] = [[] for _ in shards]
    weights = {"first": copied(model)}
    for step in range(steps):
        for rank, shard in enumerate(shards):
            batch = next(shard.batches)
            ids[rank].append(shard.batches.ids.clone())
            parts = [forward_backward(workload, part, keep=rank == 0 and i == 0) for i, part in split(trial, batch)]
            losses[rank].append(sum(parts) / len(parts))
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= trial.workers
        optimizer.step()
        optimizer.zero_grad()
        weights["one" if step == 0 else "last"] = copied(model)
    weights.setdefault("last", weights["one"])
    return Testimony(losses, [torch.stack(batches) for batches in ids], [epochs(shard) for shard in shards], [], weights)


def loaded(trial: Trial, rank: int, device: torch.device) -> Workload:
    """One rank's workload. One process that drives several GPUs reads all their samples as one batch."""
    whole = replace(trial, batch_per_worker=trial.batch_per_worker * trial.workers // trial.processes)
    return workloads.load(whole, Ranks(rank=rank, world_size=trial.processes, device=device))


def split(trial: Trial, batch: Batch) -> Iterator[tuple[int, Batch]]:
    """(GPU, its part) of a process's batch."""
    parts = trial.workers // trial.processes
    yield from enumerate(zip(*(tensor.chunk(parts) for tensor in batch), strict=True))


def forward_backward(workload: Workload, batch: Batch, keep: bool) -> float:
    """Add a shard's gradients to those that are there; its loss. `keep` its BatchNorm buffers or drop them."""
    before = [buffer.clone() for buffer in workload.model.buffers()]
    total = 0.0
    for part, _ in workload.micro_batches(batch):
        loss = workload.share(workload.model, part)
        loss.backward()
        total += float(loss)
    if not keep:
        for buffer, value in zip(workload.model.buffers(), before, strict=True):
            buffer.copy_(value)
    return total


def epochs(shard: Workload) -> torch.Tensor:
    """The ids of the next EPOCHS whole epochs of one rank."""
    for _ in range(-shard.batches.taken % shard.steps_per_epoch):
        shard.batches.skip()
    return torch.stack(
        [torch.cat([shard.batches.skip() for _ in range(shard.steps_per_epoch)]) for _ in range(EPOCHS)]
    )


def copied(model: nn.Module) -> Weights:
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}
