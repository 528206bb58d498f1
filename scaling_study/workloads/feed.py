"""The batches of one rank: which samples, in which order, read ahead.                                     [torch]

    epoch e:  permutation of all samples, seeded by (seed, e)     the same on every rank
              3 1 4 0 5 2 | 6                                     the tail that fills no global batch is left out
              rank 0: 3 4 5     rank 1: 1 0 2                     every second one: disjoint by construction

torch's DistributedSampler repeats samples to make the ranks even; here none is read twice in an epoch, and nobody has
to remember a set_epoch (F25). A Feed keeps the ids of a batch beside its tensors: what a rank really read can be shown.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from scaling_study.datasets import NoData
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial

if TYPE_CHECKING:
    from torchmetrics import Metric


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


T = TypeVar("T")
Batch = tuple[torch.Tensor, ...]
Metrics = Mapping[str, "Metric"]  # by the names of targets.py


@dataclass(frozen=True)
class HeldOut:
    """Validation and test data, and the metrics of both. Samples are asked for by their place in the split."""

    sizes: Mapping[str, int]  # split ("validation", "test") -> samples
    fetch: Callable[[str, torch.Tensor], Batch]  # split, places (b,) int64 -> batch
    metrics: Callable[[], Metrics]  # new ones, whose states are sums over samples
    # By the samples of a batch that a mask (b,) names.
    update: Callable[[Metrics, nn.Module, Batch, torch.Tensor], None]
    batch: int = 256  # samples of a rank that are evaluated at once
    published: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # split -> set it was published in -> size
    in_both: Mapping[str, int] = field(default_factory=dict)  # "train/validation" -> samples that are in both


def to_train_on(trial: Trial, read: Callable[[], T]) -> T:
    """Real data, by what reads it. Raises SystemExit where there is none: synthetic data has no result to train to."""
    try:
        if trial.data == "synthetic":
            raise NoData("training to a target needs real data, not synthetic")
        return read()
    except NoData as error:
        raise SystemExit(f"--data {trial.data}: {error}") from error


def found(trial: Trial, name: str, read: Callable[[], T], missing: str) -> tuple[T | None, str]:
    """(real data, `name`) of a trial that is timed, or (None, "synthetic (why)").

    `data: auto` falls back by name, never silently. Raises SystemExit where the trial names data that are not there.
    """
    if trial.data == "synthetic":
        return None, "synthetic (asked for)"
    try:
        return read(), name
    except NoData as error:
        if trial.data == name:
            raise SystemExit(f"--data {name}: {error}") from error
        return None, f"synthetic ({missing})"


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


@dataclass(frozen=True)
class Data:
    """A rank's batches, where they come from, and what is held out of a training to a result."""

    feed: Feed
    source: str  # as recorded: "cifar10", "synthetic (why)"
    steps_per_epoch: int
    held_out: HeldOut | None = None
    classes: int = 10
    notes: list[str] = field(default_factory=list)  # for the record


def random_batches(
    trial: Trial, ranks: Ranks, drawn: Callable[[int, int], Batch], placed: Callable[[Batch], Batch] = tuple
) -> Callable[[torch.Tensor], Batch]:
    """Seeded random samples in the place of real ones: ids (batch,) -> their batch on the device.

    `drawn`: (seed, samples) -> a batch, `placed` on the device. One batch stays there and is read again each step: it
    costs nothing, which is its purpose. It may also stay in a cache: so `resident_batches` are read in turn. A parity
    gate needs distinct samples: there each id has one of its own.
    """

    def own(ids: torch.Tensor) -> Batch:
        samples = [drawn(trial.seed * 1_000_003 + int(id), 1) for id in ids]
        return placed(tuple(torch.cat(parts) for parts in zip(*samples, strict=True)))

    if trial.find == "parity":
        return own
    first = trial.seed * 1_000_003 + ranks.rank
    seeds = (first + number * ranks.world_size for number in range(trial.resident_batches or 1))
    ring = itertools.cycle([placed(drawn(seed, trial.batch_per_worker)) for seed in seeds])
    return lambda ids: next(ring)


class Order(Iterator[torch.Tensor]):
    """Endless batches of this rank's ids, (batch,) each, for a trial; `epoch` is that of the last.

    Of all of so many samples, or of those whose ids, (n,) int64, are given. Raises SystemExit as `batches_of_indices`.
    """

    def __init__(self, samples: int | torch.Tensor, trial: Trial, ranks: Ranks) -> None:
        self.ids = torch.arange(samples) if isinstance(samples, int) else samples
        shared = ranks.world_size, trial.batch_per_worker
        self.epoch, self._taken, self.steps = 0, 0, steps_per_epoch(len(self.ids), *shared)
        self._places = batches_of_indices(len(self.ids), trial.seed, ranks.rank, *shared)

    def __next__(self) -> torch.Tensor:
        places = next(self._places)
        self.epoch, self._taken = self._taken // self.steps, self._taken + 1
        return self.ids[places]


AHEAD = 2  # batches in the making while another is trained on


@dataclass(frozen=True)
class Drawn:
    epoch: int
    ids: torch.Tensor  # (batch,) int64


Library = Callable[[Iterator[Drawn]], Generator[torch.Tensor, None, None]]  # batches that are drawn -> the same, made


class DrawnAhead(Iterator[torch.Tensor]):
    """The batches of ids of `order`, where a library draws them itself, ahead of those that it hands over made.

        asked for      batch 0             batch 1             batch 2
        training               step 0              step 1
        library        0 1 2 ........      3 ........          4 ........

    Passing over a batch (the parity gate skips whole epochs) begins nothing and stops the library. It begins again
    where one is taken, with what it had drawn in vain.
    """

    def __init__(self, order: Iterator[torch.Tensor], steps_per_epoch: int, library: Library) -> None:
        self.library = library
        self.fresh = (Drawn(number // steps_per_epoch, ids) for number, ids in enumerate(order))
        self.again: deque[Drawn] = deque()  # drawn in vain
        self.coming: deque[Drawn] = deque()  # drawn by the library, and not taken yet
        self.running: Generator[torch.Tensor, None, None] | None = None
        self.current: Drawn | None = None  # handed out, and not taken yet

    def __next__(self) -> torch.Tensor:
        if self.current:
            self.stop()
            self.again.popleft()
            self.current = None
        if not self.coming and not self.again:
            self.again.append(next(self.fresh))
        self.current = (self.coming or self.again)[0]
        return self.current.ids

    def take(self, ids: torch.Tensor) -> torch.Tensor:
        """The batch that was handed out last, as the library made it."""
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


def read_ahead(begin: Callable[[Drawn], Begun]) -> Library:
    """A library of our own threads: it begins AHEAD batches more than the one that it hands over."""

    def made(drawn: Iterator[Drawn]) -> Generator[torch.Tensor, None, None]:
        coming: deque[Begun] = deque()
        try:
            while True:
                coming += map(begin, itertools.islice(drawn, 1 + AHEAD - len(coming)))
                if not coming:
                    return
                yield coming.popleft().whole()
        finally:
            for job in itertools.chain.from_iterable(batch.jobs for batch in coming):
                job.cancel()

    return made
