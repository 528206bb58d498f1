"""The batches of one rank, and which samples are in them.                                                [torch]

    order: batches of sample ids  --fetch-->  batches of tensors
           [3 4 5] [1 0 2] ...                (images, labels) ...

The ids are kept beside the tensors, so that what a rank really read can be shown (the parity gate) and is
not a claim of the sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

Batch = tuple[torch.Tensor, ...]


class Feed:
    """An endless iterator of batches. `ids` are the sample ids of the last one, shape (batch,) int64."""

    def __init__(self, order: Iterator[torch.Tensor], fetch: Callable[[torch.Tensor], Batch]) -> None:
        self.order, self.fetch = order, fetch
        self.ids = torch.empty(0, dtype=torch.int64)
        self.taken = 0  # batches so far

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Batch:
        return self.fetch(self.skip())

    def skip(self) -> torch.Tensor:
        """Pass over a batch without making it; its ids."""
        self.ids = next(self.order)
        self.taken += 1
        return self.ids
