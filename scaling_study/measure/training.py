"""One configuration, as a script's `build` returns it: ready to be stepped and measured.                [torch]"""

from __future__ import annotations

import socket
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import boot_id
from scaling_study.measure.memory import Held
from scaling_study.measure.wire import Wire
from scaling_study.ranks import Ranks
from scaling_study.records import schema
from scaling_study.records.schema import Event
from scaling_study.trial import Trial
from scaling_study.workloads import Workload
from scaling_study.workloads.workload import Batch

NAMES = ("data", "forward", "backward", "communication", "matchmaking", "averaging", "optimizer")
NOTHING = nullcontext()


class Phase:
    """Seconds of the parts of a step: data, forward, backward, exposed communication, optimiser.

    A script marks them, `with phase("forward"): ...`. In the timed window that does nothing. In the instrumented window
    each part is timed between two waits for the device, which disturbs what it measures; so its step time is reported
    beside the undisturbed one, and what no mark covers is named.
    """

    def __init__(self, device: torch.device, *further: torch.device) -> None:
        self.devices = (device, *further)
        self.on = False
        self.entered: Callable[[str], None] | None = None  # called where a phase begins (Arrivals)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return self._timed(name) if self.on else NOTHING

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = self.reached()
        if self.entered:
            self.entered(name)
        yield
        self.seconds[name] += self.reached() - start

    def shift(self, seconds: float, source: str, target: str) -> None:
        """So many seconds of one phase were of another."""
        if self.on:
            self.seconds[source] -= seconds
            self.seconds[target] += seconds

    def reached(self) -> float:
        """The time at which the work of these devices' streams is done; collectives on streams of their own go on (that
        is overlap)."""
        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return time.perf_counter()

    def means(self, steps: int, seconds: float) -> schema.Phases:
        """Means over `steps` instrumented steps that took `seconds` in all. Unmarked phases are None."""
        means = {f"{name}_seconds": self.seconds[name] / steps for name in NAMES if name in self.seconds}
        rest = (seconds - sum(self.seconds.values())) / steps
        return schema.Phases(steps=steps, step_seconds=seconds / steps, unattributed_seconds=rest, **means)


def now(*devices: torch.device) -> float:
    """Seconds on a monotonic clock, once the devices have finished all they were given."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter()


class Stopwatch:
    """Seconds of every step: `start()`, then `lap()` after each step, then `seconds()`, one number a lap.

    There is no gap between two steps and no synchronisation inside them: on a GPU, ahead of which the host runs, an
    event is recorded between steps and read when the block is over.
    """

    def __init__(self, device: torch.device, *further: torch.device) -> None:
        self.device, self.further = device, further
        self._marks: list[Any] = []  # floats, or CUDA events

    def start(self) -> None:
        now(self.device, *self.further)
        self._marks = []
        self.lap()

    def lap(self) -> None:
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device)
            for device in self.further:  # events of two devices have no clock in common: one comes after all of them
                stream.wait_stream(torch.cuda.current_stream(device))
            event = torch.cuda.Event(enable_timing=True)
            event.record(stream)
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        if self.device.type != "cuda":
            return [after - before for before, after in pairs]
        now(self.device, *self.further)
        return [before.elapsed_time(after) / 1e3 for before, after in pairs]


class Timeline:
    """Events of a pipeline's stages, from which its bubble is measured: call it with kind, stage and micro-batch.

        step 3   worker 0   F0 F1 F2 F3 .  .  B0 B1 B2 B3        [3, "forward", stage 0, micro-batch 0, start, end], ...
                 worker 1   .  F0 F1 F2 F3 B0 B1 B2 B3           `.` idle: what no event covers

    Recorded in the instrumented window only, as phases are. Times are seconds on one clock: rank 0's, which every rank
    of its host (by name and boot) can read; a rank elsewhere counts from the moment at which it received rank 0's.
    """

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.events: list[Event] = []
        self.step, self._zero = 0, 0.0

    def begin(self, agree: Callable[[float], float]) -> None:
        """Set the zero that all ranks share. Called by all of them."""
        zero = agree(time.perf_counter())
        here = time.perf_counter()
        mine = float(zlib.crc32(f"{socket.gethostname()} {boot_id()}".encode()))
        self._zero = zero if agree(mine) == mine else here

    def __call__(self, kind: str, stage: int, micro_batch: int) -> AbstractContextManager[None]:
        return self._noted(kind, stage, micro_batch) if self.phase.on else NOTHING

    @contextmanager
    def _noted(self, kind: str, stage: int, micro_batch: int) -> Iterator[None]:
        with self.phase(kind.partition("_")[0]):  # both kinds of half a backward are of backward
            start = time.perf_counter() - self._zero
            yield
            self.phase.reached()
            end = time.perf_counter() - self._zero
        event = (self.step, kind, stage, micro_batch)
        if self.events and self.events[-1][:4] == event:  # the loss goes on where its forward ended
            start = self.events.pop()[4]
        self.events.append((*event, start, end))


def begun_round() -> schema.AveragingRound:
    """An averaging round in which nothing has happened yet."""
    return schema.AveragingRound(0, 0, 0.0, 0.0, 0.0, 0.0, failure="", weights_seconds=0.0)


WEIGHTS_LATE = 2  # averaging rounds after which an update has waited for the weights


class AveragingRounds:
    """The averaging rounds of one peer, in order. `late`: how many of the last may still be under way; None: a round
    need not be averaged."""

    def __init__(self, peers: int, late: int | None = 0) -> None:
        self.peers = peers  # that take part in a whole round
        self.late = late
        self.over: list[schema.AveragingRound] = []
        self.current = begun_round()
        self.counted = 0  # rounds whose samples were asked for

    def uncounted(self) -> int:
        """Samples that this peer gave to the rounds that were over since the last call."""
        new, self.counted = self.over[self.counted :], len(self.over)
        return sum(each.samples for each in new)

    def end(self) -> None:
        """The current round is over, and another begins."""
        self.over.append(self.current)
        self.current = begun_round()

    def since(self, count: int) -> list[schema.AveragingRound]:
        """Copies of the rounds after the first `count` (below zero: the last so many)."""
        for age, each in enumerate(reversed(self.over)):
            each.failure = each.failure or self._failure(each, age)
        return [replace(each) for each in self.over[count:]]

    def _failure(self, each: schema.AveragingRound, age: int) -> str:
        """The reason why not all peers took part in a round that `age` others came after; empty where all did."""
        if not each.peers and self.late is not None and age >= self.late:
            return "nothing was averaged with anybody"
        if 0 < each.peers < self.peers:
            return f"{each.peers} of {self.peers} peers took part"
        if each.weights_peers and each.weights_peers < self.peers:
            return f"weights: {each.weights_peers} of {self.peers} peers took part"
        if each.weights_peers == 0 and age >= WEIGHTS_LATE:
            return "weights: what came of averaging them is not known"
        return ""


Rounds = AveragingRounds  # its name in frameworks of users


Loss = torch.Tensor | None  # still on the device; None on a pipeline's ranks that have none
Step = Callable[[Batch], Loss]  # one optimiser step
Norm = Callable[[Sequence[torch.nn.Parameter]], torch.Tensor]  # of all gradients, from a rank's own parameters
Weights = dict[str, torch.Tensor]  # by the plain model's names, buffers included


@dataclass
class Training:
    """A step, and what the clock has to know of it. `phase`, `wire` and `timeline` are those that the step marks."""

    step: Step
    workload: Workload
    optimizer: torch.optim.Optimizer
    phase: Phase
    wire: Wire
    weights: Callable[[], Weights] | None = None  # gathers the whole model's, called by all ranks; None: state_dict
    held: Callable[[], Held] | None = None  # state kept outside both, and buckets (measure/memory.py)
    timeline: Timeline | None = None  # of a pipeline: what each stage does when
    stages: Sequence[schema.StageRecord] = ()  # of a pipeline: what its stages on this rank are
    forward: torch.nn.Module | None = None  # the model as it is called where nothing is trained; None: the workload's
    whole: Callable[[], torch.nn.Module] | None = None  # of a pipeline, called by all ranks: the model to evaluate
    norm: Norm | None = None  # of all gradients, by which they are clipped; None: torch's own, of the optimiser's
    state: Any = None  # of a training to a result: how it is saved and loaded (train/checkpoints.py); None: by rank 0
    scaler: Any = None  # of fp16 losses
    rounds: AveragingRounds | None = None  # where a step is one averaging round, of no fixed number of samples
    paused: Callable[[], AbstractContextManager[None]] = nullcontext  # entered by all ranks while nothing is trained
    native: Callable[[Any], int] | None = None  # the library's own loop, where train/loop.py hands over to it
    best: Callable[[], int] | None = None  # of such a loop: put back the best model that it kept; of which step it is
    layout: str = ""  # digest of the model before it was wrapped (train/checkpoints.py); empty: it tells afterwards too
    backend: Mapping[str, Any] = field(default_factory=dict)  # what the framework reports once the model is wrapped
    period: int = 1  # steps from one communication to the next (`sync_every`)

    def whole_periods(self, steps: int) -> int:
        """So many steps, rounded up to whole periods, so that each has its share of what is communicated."""
        return -(-steps // self.period) * self.period


def share_buffers(model: torch.nn.Module, ranks: Ranks) -> None:
    """Rank 0's buffers (BatchNorm's statistics) on every rank; called by all, before an evaluation or a comparison.

    The sum over ranks of which only the first adds anything: so every framework does it alike, by its own collective.
    """
    buffers = [torch.view_as_real(each) if each.is_complex() else each for each in model.buffers()]
    if ranks.world_size == 1 or not buffers:
        return
    ours = torch.cat([buffer.detach().double().reshape(-1).cpu() for buffer in buffers])
    first = torch.tensor(ranks.total((ours if ranks.rank == 0 else torch.zeros_like(ours)).tolist()), dtype=ours.dtype)
    with torch.no_grad():
        for buffer, values in zip(buffers, first.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(values.view_as(buffer))  # exact: fp64 holds every value of the narrower types


PARITY_STEPS = 10
PARITY_EPOCHS = 2


class ParityRecorder:
    """The trace of a rank of a parity trial, recorded around its steps; every rank has one, and all call the same
    collectives in the same order.

        step 1 ... 10:  loss, sample ids        weights before step 1, after it, and after the last (rank 0)
        then            the ids of the next two whole epochs: nothing is trained

    BatchNorm's buffers are each rank's own while it trains. Before weights are gathered, all ranks take rank 0's. The
    reference is computed elsewhere, by another process (scaling_study/parity).
    """

    def __init__(self, workload: Workload, trial: Trial, ranks: Ranks, weights: Callable[[], Weights]) -> None:
        self.workload, self.ranks, self._gather = workload, ranks, weights
        self.cut = FRAMEWORKS[trial.framework].cuts_model  # each rank has buffers of other layers
        self.steps = min(PARITY_STEPS, trial.window.warmup_steps + trial.window.min_steps)
        self.taken = 0
        self.losses: list[float] = []  # none on a pipeline's ranks that have no loss
        self.ids: list[torch.Tensor] = []
        self.frozen = [name for name, p in workload.model.named_parameters() if not p.requires_grad]
        self.weights = {"first": self.gathered()}

    def recorded(self, step: Step) -> Step:
        """The step, whose loss and sample ids are recorded the first `steps` times."""

        def recorded_step(batch: Batch) -> Loss:
            ids = self.workload.batches.ids
            if len(ids) != len(batch[0]):
                held = f"the ids of {len(ids)} samples and a batch of {len(batch[0])}"
                raise RuntimeError(f"step {self.taken + 1} has {held}: what was read is not what the feed names")
            loss = step(batch)
            if self.taken < self.steps:
                self.taken += 1
                self.losses += [] if loss is None else [float(loss)]
                self.ids.append(ids.clone())
                if self.taken in (1, self.steps):
                    self.weights["one" if self.taken == 1 else "last"] = self.gathered()
            return loss

        return recorded_step

    def gathered(self) -> Weights:
        """A copy of the whole model's weights on the host. Every rank helps to gather them; rank 0 keeps them."""
        if not self.cut:
            share_buffers(self.workload.model, self.ranks)
        weights = self._gather()
        return copied(weights) if self.ranks.rank == 0 else {}

    def write(self, folder: Path) -> None:
        """Write `folder`/parity/rank-<n>.pt: tensors and plain values only, to be read with weights_only."""
        trace = {
            "losses": self.losses,
            "ids": torch.stack(self.ids).to(torch.int32),  # (steps, batch)
            "epochs": coming_epochs(self.workload).to(torch.int32),  # (PARITY_EPOCHS, samples of this rank)
            "frozen": self.frozen,
            "weights": self.weights,
        }
        path = folder / "parity" / f"rank-{self.ranks.rank}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(trace, path)


def coming_epochs(workload: Workload) -> torch.Tensor:
    """Sample ids of the next whole epochs after the one that is under way, (PARITY_EPOCHS, samples of this rank)."""
    feed, steps = workload.batches, workload.steps_per_epoch
    for _ in range(-feed.taken % steps):
        feed.skip()
    return torch.stack([torch.cat([feed.skip() for _ in range(steps)]) for _ in range(PARITY_EPOCHS)])


def copied(weights: Weights) -> Weights:
    """On the host, and no longer what is trained."""
    return {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}
