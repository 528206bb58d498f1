"""The training that every framework must reproduce: one process, plain PyTorch.                         [torch]

    for each step:   rank 0's batch -> forward, backward      its BatchNorm buffers are kept
                     rank 1's batch -> forward, backward      its own are dropped, as when each rank had a copy
                     ...
                     weights -= rate x gradients / workers     plain SGD, by hand

Each worker's shard goes through the model by itself, so that BatchNorm sees that shard and not the global batch: what
data parallelism does everywhere unless it is told to synchronise. Mean over the workers of gradients of means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from scaling_study import workloads
from scaling_study.measure.training import Weights, coming_epochs, copied
from scaling_study.ranks import Ranks, claim_device
from scaling_study.trial import Trial
from scaling_study.workloads import PARITY_RATE, Batch, Workload


@dataclass
class ParityTrace:
    """Losses, samples and weights that ranks recorded, or should have, of a framework or of the reference."""

    losses: list[list[float]]  # [rank][step]
    ids: list[torch.Tensor]  # [rank], (steps, batch)
    epochs: list[torch.Tensor]  # [rank], (PARITY_EPOCHS, samples of that rank)
    frozen: list[str]  # names of parameters that are not trained
    weights: dict[str, Weights]  # "first", "one", "last" -> the model before, after one step, and after the last
    trained: list[str] = field(default_factory=list)  # names of parameters that are; of the reference only
    reshuffles: bool = True  # every epoch should have a new order; of the reference only


def run(trial: Trial, steps: int, nudge: int | None = None) -> ParityTrace:
    """Train `steps` steps of the trial in this process. `nudge`: a seed; its weights begin as `nudged` has them."""
    device = claim_device(trial)
    readers = min(trial.processes, trial.data_parallel)  # a pipeline's workers share one batch
    shards = [loaded(trial, rank, readers, device) for rank in range(readers)]
    workload, model = shards[0], shards[0].model
    rate = trial.learning_rate or PARITY_RATE * trial.data_parallel
    losses: list[list[float]] = [[] for _ in shards]
    ids: list[list[torch.Tensor]] = [[] for _ in shards]
    weights = {"first": copied(model.state_dict())}
    if nudge is not None:
        nudged(model, nudge)
    for step in range(1, steps + 1):
        for rank, shard in enumerate(shards):
            batch = next(shard.batches)
            ids[rank].append(shard.batches.ids.clone())
            losses[rank].append(forward_backward(workload, batch, trial.data_parallel // readers, keep=rank == 0))
        with torch.no_grad():  # the first torch.optim of a process imports torch._dynamo: half a judgement's time
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad / trial.data_parallel, alpha=-rate)
                    parameter.grad = None
        if step in (1, steps):
            weights["one" if step == 1 else "last"] = copied(model.state_dict())
    names = {kind: [n for n, p in model.named_parameters() if p.requires_grad is kind] for kind in (True, False)}
    return ParityTrace(
        losses=losses,
        ids=[torch.stack(batches) for batches in ids],
        epochs=[coming_epochs(shard) for shard in shards],
        frozen=names[False],
        weights=weights,
        trained=names[True],
        reshuffles=workload.reshuffles,
    )


def loaded(trial: Trial, rank: int, readers: int, device: torch.device) -> Workload:
    """One rank's workload. One process that drives several GPUs reads all their samples as one batch.

    A pipeline's micro-batches are parts whose gradients add up: what BatchNorm sees, and the mean of their losses.
    """
    parts = trial.micro_batches or trial.accumulation
    plain = replace(trial, compile=False, compile_scope=None, memory_format="contiguous")
    plain = replace(plain, gelu=None, cross_entropy=None, checkpoint=None)
    whole = replace(plain, accumulation=parts, batch_per_worker=trial.global_batch // readers)
    return workloads.load(whole, Ranks(rank=rank, world_size=readers, device=device))


def forward_backward(workload: Workload, batch: Batch, gpus: int, keep: bool) -> float:
    """Add the gradients of a process's batch, split over its GPUs, to those that are there; the batch's loss.

    Of BatchNorm's buffers the first GPU's are kept, if `keep` says so.
    """
    total = 0.0
    for micro_batch, _ in workload.micro_batches(batch):
        for gpu, part in enumerate(zip(*(tensor.chunk(gpus) for tensor in micro_batch), strict=True)):
            before = [buffer.clone() for buffer in workload.model.buffers()]
            loss = workload.share(workload.model, part)
            loss.backward()
            total += float(loss.detach()) / gpus
            if not keep or gpu > 0:
                for buffer, value in zip(workload.model.buffers(), before, strict=True):
                    buffer.copy_(value)
    return total


def nudged(model: nn.Module, seed: int) -> None:
    """Move each weight up or down to the next number that there is in its type, as the seed says."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            up = torch.rand(weight.shape, generator=generator) < 0.5
            away = torch.where(up, math.inf, -math.inf).to(weight.device, weight.dtype)
            weight.copy_(torch.nextafter(weight, away))
