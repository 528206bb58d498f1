"""Batches that are begun before they are asked for: a Feed's order, and who makes them.                   [torch]

    asked for      batch 0             batch 1             batch 2
    training               step 0              step 1
    threads        0 1 2 ........      3 ........          4 ........

Which batch comes next never depends on which thread was the fastest. A batch that is passed over (the parity gate
skips whole epochs) is called off, and passing over begins nothing. So with our own threads (ReadAhead), and with a
library that draws the ids itself (DrawnAhead).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
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


@dataclass(frozen=True)
class Drawn:
    """A batch of ids, and the epoch that it is of."""

    epoch: int
    ids: torch.Tensor  # (batch,) int64


Library = Callable[[Iterator[Drawn]], Generator[torch.Tensor, None, None]]  # batches that are drawn -> the same, made


class DrawnAhead(Iterator[torch.Tensor]):
    """The batches of ids of `order`, where a library draws them itself, ahead of those that it hands over made.

    Passing over a batch stops the library. It begins again where one is taken, with what it had drawn in vain.
    """

    def __init__(self, order: Iterator[torch.Tensor], steps_per_epoch: int, library: Library) -> None:
        self.library = library
        self.fresh = (Drawn(number // steps_per_epoch, ids) for number, ids in enumerate(order))
        self.again: deque[Drawn] = deque()  # drawn in vain
        self.coming: deque[Drawn] = deque()  # drawn by the library, and not taken yet
        self.running: Generator[torch.Tensor, None, None] | None = None
        self.current: Drawn | None = None  # handed out, and not taken yet

    def __next__(self) -> torch.Tensor:
        """The ids of the next batch, (batch,)."""
        if self.current:
            self.stop()
            self.again.popleft()
            self.current = None
        if not self.coming and not self.again:
            self.again.append(next(self.fresh))
        self.current = (self.coming or self.again)[0]
        return self.current.ids

    def take(self, ids: torch.Tensor) -> torch.Tensor:
        """What the library made of the batch that was handed out last."""
        assert self.current and self.current.ids is ids, "a batch is taken once, before the next one is asked for"
        self.running = self.running or self.library(self._drawn())
        made = next(self.running)
        self.current = None
        self.coming.popleft()
        return made

    def stop(self) -> None:
        """End what the library has under way."""
        if self.running:
            self.running.close()
            self.running = None
        self.again.extendleft(reversed(self.coming))
        self.coming.clear()

    def _drawn(self) -> Iterator[Drawn]:
        while batch := self.again.popleft() if self.again else next(self.fresh, None):
            self.coming.append(batch)
            yield batch
