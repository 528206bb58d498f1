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


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host's tensor on the device. To a GPU asynchronously, from pinned memory: from any other memory the host would
    wait for all that is queued on the device, and the time of the step before would be that of fetching a batch.

    The pinned memory may be dropped at once: torch's allocator marks such a copy by an event on its stream, and hands
    the memory out again only when the event has passed.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Feed:
    """An endless iterator of batches. `ids` are the sample ids of the last one, shape (batch,) int64."""

    def __init__(self, order: Iterator[torch.Tensor], fetch: Callable[[torch.Tensor], Batch]) -> None:
        self.order, self.fetch = order, fetch
        self.ids = torch.empty(0, dtype=torch.int64)
        self.taken = 0  # batches so far
        self.notes: Callable[[], list[str]] = list  # what there is to say of what was read, for the record
        # Seconds of all fetches so far in which a part of the model computed a batch, and no data were waited for.
        self.computing: Callable[[], float] = lambda: 0.0
        self._ahead: tuple[torch.Tensor, Batch] | None = None

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Batch:
        ahead = self._ahead
        ids = self.skip()
        return ahead[1] if ahead else self.fetch(ids)

    def peek(self) -> Batch:
        """The batch that comes next, which still comes next: what shapes there will be."""
        if not self._ahead:
            ids = next(self.order)
            self._ahead = ids, self.fetch(ids)
        return self._ahead[1]

    def skip(self) -> torch.Tensor:
        """Pass over a batch without making it; its ids."""
        self.ids = self._ahead[0] if self._ahead else next(self.order)
        self._ahead = None
        self.taken += 1
        return self.ids
