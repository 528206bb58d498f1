"""Which samples a rank reads, and in which order.                                                      [torch]

    epoch e:  permutation of all samples, seeded by (seed, e)     the same on every rank
              3 1 4 0 5 2 | 6                                     the tail that fills no global batch is left out
              rank 0: 3 4 5     rank 1: 1 0 2                     every second one: disjoint by construction

No padding: torch's DistributedSampler repeats samples to make the ranks even, so that some are read twice
in an epoch. Here every rank takes equally many and none is read twice; a new epoch is a new order, and
nobody has to remember a set_epoch (F25).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch


def shard(samples: int, epoch: int, seed: int, rank: int, world_size: int, batch: int) -> torch.Tensor:
    """Sample indices of one rank for one epoch, shape (steps_per_epoch * batch,), int64."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
    whole = steps_per_epoch(samples, world_size, batch) * world_size * batch
    return order[:whole][rank::world_size].contiguous()


def steps_per_epoch(samples: int, world_size: int, batch: int) -> int:
    """Optimiser steps that read every sample once, less the tail that fills no global batch."""
    return samples // (world_size * batch)


def batches_of_indices(samples: int, seed: int, rank: int, world_size: int, batch: int) -> Iterator[torch.Tensor]:
    """Endless batches of sample indices, shape (batch,). Raises SystemExit if one global batch exceeds the data."""
    if steps_per_epoch(samples, world_size, batch) == 0:
        raise SystemExit(
            f"a global batch of {world_size * batch} samples is more than the {samples} samples there are: "
            f"lower --batch-per-worker ({batch}) or the number of workers ({world_size})"
        )
    epoch = 0
    while True:
        yield from shard(samples, epoch, seed, rank, world_size, batch).split(batch)
        epoch += 1
