"""A model's metrics over a whole split, each sample once, by any number of ranks.                         [torch]

    places   0 1 2 3 4 5 6        rank 0: 0 2 4 6       rank 1: 1 3 5 (0)      (0) fills a batch, and is not counted

Every rank makes the same number of batches: sharded models gather their weights in each. What is reduced are the
metrics' states, which are sums over samples, never the ranks' means (F27).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from scaling_study.measure.training import share_buffers
from scaling_study.ranks import Ranks
from scaling_study.workloads import Batch, Workload
from scaling_study.workloads.feed import HeldOut, Metrics


def evaluate(
    held_out: HeldOut, split: str, workload: Workload, forward: nn.Module | None, ranks: Ranks
) -> dict[str, float]:
    """{metric: value, "samples": n} on every rank, called by all. `forward`: the model as it is to be called."""
    model = forward or workload.model
    share_buffers(model, ranks)
    metrics, counted = held_out.metrics(), 0
    model.eval()
    with torch.no_grad():
        for batch, real in batches(held_out, split, ranks):
            held_out.update(metrics, model, batch, real.to(ranks.device))
            counted += int(real.sum())
    model.train()
    (samples,) = ranks.total([float(counted)])
    return {**reduced(metrics, ranks), "samples": samples}


def batches(held_out: HeldOut, split: str, ranks: Ranks) -> Iterator[tuple[Batch, torch.Tensor]]:
    """This rank's share of a split: batches, and which samples of each, (b,) bool on the host, are to be counted."""
    size = held_out.sizes[split]
    most = -(-size // ranks.world_size)  # samples of the rank that has most
    for places in torch.arange(ranks.rank, most * ranks.world_size, ranks.world_size).split(min(held_out.batch, most)):
        real = places < size
        yield held_out.fetch(split, torch.where(real, places, 0)), real


def reduced(metrics: Metrics, ranks: Ranks) -> dict[str, float]:
    """Each metric over all ranks, from states that are added up. Called by all."""
    states = [
        (metric, name, torch.as_tensor(value))
        for metric in metrics.values()
        for name, value in metric.metric_state.items()
    ]
    flat = torch.cat([value.double().reshape(-1).cpu() for _, _, value in states])
    totals = torch.tensor(ranks.total(flat.tolist()), dtype=torch.float64).split([v.numel() for _, _, v in states])
    for (metric, name, value), total in zip(states, totals, strict=True):
        setattr(metric, name, total.to(value.dtype).view_as(value).to(value.device))
    for metric in metrics.values():
        metric._update_count = max(1, metric._update_count)  # a rank without a sample has the others' too
    return {name: float(metric.compute()) for name, metric in metrics.items()}
