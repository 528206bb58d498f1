"""The training that every framework must reproduce: one process, plain PyTorch.                         [torch]

    for each step:   rank 0's batch -> forward, backward      its BatchNorm buffers are kept
                     rank 1's batch -> forward, backward      its own are dropped, as when each rank had a copy
                     ...
                     weights -= rate x gradients / workers     plain SGD, by hand

Each worker's shard goes through the model by itself, so that BatchNorm sees that shard and not the global batch: what
data parallelism does everywhere unless it is told to synchronise. Mean over the workers of gradients of means.

What is asked to train otherwise is held against the same algorithm, written here once more: `LowRank` for PowerSGD,
`Apart` for local SGD and DiLoCo.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from scaling_study import workloads
from scaling_study.frameworks import POWERSGD
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
    model = shards[0].model
    losses: list[list[float]] = [[] for _ in shards]
    ids: list[list[torch.Tensor]] = [[] for _ in shards]
    weights = {"first": copied(model.state_dict())}
    if nudge is not None:
        for shard in shards:
            nudged(shard.model, nudge)
    update = updated(trial, [shard.model for shard in shards])
    for step in range(1, steps + 1):
        for rank, shard in enumerate(shards):
            batch = next(shard.batches)
            ids[rank].append(shard.batches.ids.clone())
            workload, keep = shards[rank % len(update.models)], rank < len(update.models)
            losses[rank].append(forward_backward(workload, batch, trial.data_parallel // readers, keep))
            update.after_backward(rank)
        with torch.no_grad():  # the first torch.optim of a process imports torch._dynamo: half a judgement's time
            update.after_all(step)
        if step in (1, steps):
            weights["one" if step == 1 else "last"] = update.weights()
    names = {kind: [n for n, p in model.named_parameters() if p.requires_grad is kind] for kind in (True, False)}
    return ParityTrace(
        losses=losses,
        ids=[torch.stack(batches) for batches in ids],
        epochs=[coming_epochs(shard) for shard in shards],
        frozen=names[False],
        weights=weights,
        trained=names[True],
        reshuffles=shards[0].reshuffles,
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


class Together:
    """All workers have one model: their gradients add up in it, and it steps by the mean."""

    def __init__(self, models: Sequence[nn.Module], workers: int, rate: float) -> None:
        self.models, self.workers, self.rate = models[:1], workers, rate
        self.parameters = list(models[0].parameters())

    def after_backward(self, rank: int) -> None:
        """Take what a worker's backward has left."""

    def mean(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The gradient to step by; None: there is none."""
        return None if parameter.grad is None else parameter.grad / self.workers

    def after_all(self, step: int) -> None:
        """Update the weights, without a graph, once each worker has gone through its batch of this step, from 1."""
        for parameter in self.parameters:
            if (gradient := self.mean(parameter)) is not None:
                parameter.add_(gradient, alpha=-self.rate)
            parameter.grad = None

    def weights(self) -> Weights:
        """A copy of what all workers have in common."""
        return copied(self.models[0].state_dict())


class LowRank(Together):
    """PowerSGD with error feedback (Vogels et al., arXiv 1905.13727, algorithms 1 and 2), of all workers at once.

    M_i is a worker's gradient, a matrix by its first dimension, with what was left out of it before; M their mean. The
    step goes along U U' M, the part of M in the span of M Q, of which U is an orthonormal basis. Left out of M_i is
    M_i - U U' M, and the next Q is M' U. Only the span decides anything, so U is of another factorisation than the
    framework's. Compressed are matrices that shrink: rank (rows + columns) below rows x columns.
    """

    def __init__(self, models: Sequence[nn.Module], workers: int, rate: float, rank: int, seed: int) -> None:
        super().__init__(models, workers, rate)
        numbers = torch.Generator().manual_seed(seed)
        self.right: dict[nn.Parameter, torch.Tensor] = {}
        for parameter in self.parameters:
            if parameter.requires_grad and parameter.ndim > 1:
                rows, columns = len(parameter), parameter[0].numel()
                if rank * (rows + columns) < rows * columns:
                    first = torch.randn(columns, rank, generator=numbers, dtype=torch.float64)
                    self.right[parameter] = first.to(parameter)
        self.left_out: list[dict[nn.Parameter, torch.Tensor]] = [{} for _ in range(workers)]
        self.given: list[dict[nn.Parameter, torch.Tensor]] = [{} for _ in range(workers)]  # M_i of this step

    def after_backward(self, rank: int) -> None:
        for parameter in self.right:
            assert parameter.grad is not None
            self.given[rank][parameter] = parameter.grad.flatten(1) + self.left_out[rank].get(parameter, 0.0)
            parameter.grad = None  # the next worker's is to be alone in it

    def mean(self, parameter: nn.Parameter) -> torch.Tensor | None:
        if parameter not in self.right:
            return super().mean(parameter)
        whole = torch.stack([given[parameter] for given in self.given]).mean(0)
        basis = torch.linalg.svd(whole @ self.right[parameter], full_matrices=False).U
        near: torch.Tensor = basis @ (basis.T @ whole)
        self.right[parameter] = whole.T @ basis
        for given, left_out in zip(self.given, self.left_out, strict=True):
            left_out[parameter] = given[parameter] - near
        return near.view_as(parameter)


class Apart:
    """Each worker has a model, and steps by its own gradients; every so many steps all come to the same weights.

    `average`: the mean of all (local SGD). `nesterov`: a step of SGD at 0.7, with Nesterov's momentum of 0.9, from the
    weights that they had in common before, along those less the mean (DiLoCo, arXiv 2311.08105).
    """

    def __init__(self, models: Sequence[nn.Module], rate: float, every: int, outer: str) -> None:
        self.models, self.rate, self.every, self.outer = models, rate, every, outer
        self.before = [parameter.detach().clone() for parameter in models[0].parameters()]
        self.momenta = [torch.zeros_like(value) for value in self.before]

    def after_backward(self, rank: int) -> None:
        with torch.no_grad():
            for parameter in self.models[rank].parameters():
                if parameter.grad is not None:
                    parameter.sub_(self.rate * parameter.grad)
                    parameter.grad = None

    def after_all(self, step: int) -> None:
        if step % self.every:
            return
        every = zip(self.means(), *(model.parameters() for model in self.models), strict=True)
        for at, (mean, *copies) in enumerate(every):
            new = mean
            if self.outer == "nesterov":
                along = self.before[at] - mean
                self.momenta[at] = 0.9 * self.momenta[at] + along
                new = self.before[at] - 0.7 * (along + 0.9 * self.momenta[at])
            self.before[at] = new
            for copy in copies:
                copy.copy_(new)

    def means(self) -> list[torch.Tensor]:
        """Of each parameter, over all workers."""
        copies = zip(*(model.parameters() for model in self.models), strict=True)
        return [torch.stack([copy.detach() for copy in each]).mean(0) for each in copies]

    def weights(self) -> Weights:
        """A copy of the mean of all workers' weights, with the first one's buffers."""
        whole = deepcopy(self.models[0])
        for parameter, mean in zip(whole.parameters(), self.means(), strict=True):
            parameter.data.copy_(mean)
        return copied(whole.state_dict())


def updated(trial: Trial, models: Sequence[nn.Module]) -> Together | Apart:
    """How the weights of the trial are updated, by its algorithm."""
    rate = trial.learning_rate or PARITY_RATE * trial.data_parallel
    if trial.sync_every and trial.outer:
        return Apart(models, rate, trial.sync_every, trial.outer)
    if trial.allreduce in POWERSGD:
        return LowRank(models, trial.data_parallel, rate, POWERSGD[trial.allreduce], trial.seed)
    return Together(models, trial.data_parallel, rate)


def nudged(model: nn.Module, seed: int) -> None:
    """Move each weight up or down to the next number that there is in its type, as the seed says."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            up = torch.rand(weight.shape, generator=generator) < 0.5
            away = torch.where(up, math.inf, -math.inf).to(weight.device, weight.dtype)
            weight.copy_(torch.nextafter(weight, away))
