"""Gradients that more than one worker holds a part of: averaged over replicas, added up over stages.      [torch]

    replicas   worker 0 of replica 0  <--mean-->  worker 0 of replica 1     each had its own samples
    stages     a weight in two stages: <--sum-->                            each had its own uses of it (ALBERT)

One fused buffer after the pipeline has run dry: simple, the same for every schedule, and its time is seen by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def average(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup, precision: str) -> None:
    """The mean of all gradients over the group, which travel at `precision`."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    replicas = dist.get_world_size(group)
    if replicas == 1 or not gradients:
        return
    whole = torch.cat([gradient.reshape(-1) for gradient in gradients])
    wire = whole.div_(replicas).to(DTYPES.get(precision, whole.dtype))
    dist.all_reduce(wire, group=group)
    _handed_back(wire.to(whole.dtype), gradients)


def fused_bytes(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None) -> int:
    """Bytes of the buffer that `average` copies gradients into; 0 where there is one replica."""
    alone = dist.get_world_size(group) == 1
    return 0 if alone else sum(p.nbytes for p in parameters if p.requires_grad)


def add_up(mine: Sequence[nn.Parameter | None], like: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """The sum of each shared parameter's gradient over the workers of a pipeline; those without it add nothing.

    `like` has the shape and type of each, on no device; `mine` this worker's copies, None where it has none.
    """
    if not like:
        return
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    parts = [
        torch.zeros_like(shape, device=device) if p is None or p.grad is None else p.grad
        for p, shape in zip(mine, like, strict=True)
    ]
    whole = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(whole, group=group)
    _handed_back(whole, parts)


def _handed_back(whole: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
    for gradient, value in zip(gradients, whole.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(value.view_as(gradient))
