"""A small model trained by DDP with the hook of PowerSGD, beside the reference of a parity gate.

    torchrun --nproc-per-node 2 low_rank.py 2        rank 0 prints how far the two are apart at rank 2

Buckets are small, so that there are several; each step accumulates over two micro-batches. `forget`: what a step leaves
out is lost (no error feedback).
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaling_study.parity.reference import LowRank, Together
from scaling_study.worker import powersgd

RATE, SEED, STEPS, HALVES = 0.1, 3, 6, 2


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(20, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 12)]
    return nn.Sequential(*layers).double()


def weights(trained: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(trained.parameters()).detach()


def batches(workers: int, samples: int = 6) -> torch.Tensor:
    """(steps, workers, halves, samples, 20)"""
    numbers = torch.Generator().manual_seed(1)
    return torch.randn(STEPS, workers, HALVES, samples, 20, generator=numbers, dtype=torch.float64)


def by_reference(update: Together, data: torch.Tensor) -> torch.Tensor:
    """The weights after all steps."""
    for step, of_workers in enumerate(data, 1):
        for worker, halves in enumerate(of_workers):
            for half in halves:
                (update.models[0](half).square().mean() / HALVES).backward()
            update.after_backward(worker)
        with torch.no_grad():
            update.after_all(step)
    return weights(update.models[0])


def by_hook(rank: int, data: torch.Tensor, how: str = "remember") -> tuple[torch.Tensor, int, powersgd.PowerSGD]:
    """(the weights after all steps, the number of buckets, the hook's state); called by all ranks."""
    ours, mine = model(), dist.get_rank()
    wrapped = DistributedDataParallel(ours, bucket_cap_mb=0.001, gradient_as_bucket_view=True)
    state = powersgd.PowerSGD(ours.parameters(), rank, SEED)
    wrapped.register_comm_hook(state, powersgd.hook)
    for of_workers in data:
        for index, half in enumerate(of_workers[mine]):
            with nullcontext() if index == HALVES - 1 else wrapped.no_sync():
                (wrapped(half).square().mean() / HALVES).backward()
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter -= RATE * parameter.grad
                parameter.grad.zero_()
        if how == "forget":
            for left_out in state.left_out.values():
                left_out.zero_()
    buckets = str(wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]).count(",") + 1
    return weights(ours), buckets, state


def off(ours: torch.Tensor, right: torch.Tensor) -> float:
    return float((ours - right).abs().max() / right.abs().max())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, workers = int(sys.argv[1]), dist.get_world_size()
    data = batches(workers)
    right = by_reference(LowRank([model()], workers, RATE, rank, SEED), data)
    remembers, buckets, _ = by_hook(rank, data)
    forgets, _, _ = by_hook(rank, data, "forget")
    if dist.get_rank() == 0:
        print(json.dumps({"off": off(remembers, right), "forgetful": off(forgets, right), "buckets": buckets}))
    dist.barrier()
    dist.destroy_process_group()
