"""Batches that are begun before they are asked for: a Feed's order, and who makes them.                   [torch]

    asked for      batch 0             batch 1             batch 2
    training               step 0              step 1
    threads        0 1 2 ........      3 ........          4 ........

Which batch comes next never depends on which thread was the fastest. A batch that is passed over (the parity gate
skips whole epochs) is called off, and passing over begins nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

AHEAD = 2  # batches in the making while another is trained on


@dataclass
class Begun:
    """A batch in the making: memory for its samples, and the jobs that fill it."""

    samples: torch.Tensor  # (batch, ...)
    jobs: list[Future[None]] = field(default_factory=list)

    def whole(self) -> torch.Tensor:
        """The samples, once they are all there. Raises what a job raised."""
        for job in self.jobs:
            job.result()
        return self.samples

    def call_off(self) -> None:
        for job in self.jobs:
            job.cancel()


class ReadAhead(Iterator[torch.Tensor]):
    """The batches of ids of `order`, of which the next are begun whenever one is taken."""

    def __init__(self, order: Iterator[torch.Tensor], begin: Callable[[torch.Tensor], Begun]) -> None:
        self.order, self.begin = order, begin
        self.coming: deque[tuple[torch.Tensor, Begun]] = deque()
        self.current: tuple[torch.Tensor, Begun] | None = None  # handed out, and not taken yet

    def __next__(self) -> torch.Tensor:
        """The ids of the next batch, (batch,)."""
        if self.current:
            self.current[1].call_off()
        self.current = self.coming.popleft() if self.coming else None
        return self.current[0] if self.current else next(self.order)

    def take(self, ids: torch.Tensor) -> torch.Tensor:
        """The samples of the batch that was handed out last, once they are there; the next ones are begun first."""
        mine = self.current[1] if self.current and self.current[0] is ids else self.begin(ids)
        self.current = None
        while len(self.coming) < AHEAD:
            following = next(self.order)
            self.coming.append((following, self.begin(following)))
        return mine.whole()
