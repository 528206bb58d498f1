"""Hivemind's peers: how a script joins and leaves them; their optimiser, whose averaging rounds are watched.  [torch]

    torchrun, srun or a person start the processes      each is a peer, with three children and a daemon of its own
    a store at MASTER_ADDR:MASTER_PORT                  has the first peer's addresses, and what the clock agrees on
    Hivemind's DHT                                      has all else: who takes part in a round, how far each one is

    a batch | a batch | ... all peers together have the target batch | gradients averaged | step | a batch | ...
                    looking for each other ..........................|                           | weights averaged

An averaging round is what torch calls a step. Nothing of Hivemind's algorithm is changed. What is added: the first
round waits until every peer is there; a parity gate's peers give one batch each; weights are averaged in their own
type; an update is not written over by weights that were averaged before it. Gradients of one round may be averaged
while the weights of the round before still are; a part of a tensor that is lost meanwhile counts against both. Imported
only by scripts that need Hivemind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import json
import mmap
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import hivemind
import numpy as np
import psutil
import torch
import torch.distributed as dist
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.partition import TensorPartContainer, TensorPartReducer
from hivemind.compression import Float16Compression, NoCompression, Uniform8BitQuantization, serialization
from hivemind.optim import optimizer as hivemind_optimizer
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2P

from scaling_study.measure.training import AveragingRounds, Phase
from scaling_study.ranks import Ranks, claim_cores, claim_device, local_rank, pin, told_to_meet
from scaling_study.records.schema import AveragingRound
from scaling_study.study.rules import AVERAGING_TIMEOUT_SECONDS, MATCHMAKING_SECONDS, no_core_left
from scaling_study.trial import Trial
from scaling_study.workloads import Workload

ON_THE_WIRE = {"fp16": torch.float16, "int8": torch.uint8}  # any other allreduce: gradients as they are


class Uniform8Bits(Uniform8BitQuantization):
    """Hivemind's, which NumPy 2.4 can no longer read: int() of an array of one."""

    def extract(self, serialized_tensor: Any) -> torch.Tensor:
        size = int(np.frombuffer(serialized_tensor.buffer, count=1, dtype=np.int64)[0])
        codebook = np.frombuffer(serialized_tensor.buffer, offset=8, count=size, dtype=self.codebook_dtype)
        codes = np.frombuffer(serialized_tensor.buffer, offset=8 + codebook.nbytes, dtype=self.indices_dtype)
        places = torch.as_tensor(codes, dtype=torch.int64).reshape(tuple(serialized_tensor.size))
        values = torch.as_tensor(codebook).to(dtype=getattr(torch, serialized_tensor.dtype))
        read: torch.Tensor = values[places].requires_grad_(serialized_tensor.requires_grad)
        return read


serialization._BASE_COMPRESSION_TYPES["UNIFORM_8BIT"] = Uniform8Bits()
COMPRESSION: dict[str, type[Any]] = {"fp32": NoCompression, "fp16": Float16Compression, "int8": Uniform8Bits}

WRITTEN_SECONDS = 10.0  # for a watch to note what came of an averaging that is over
ANSWER_SECONDS = 60.0  # for the process that averages to say that it has begun
# torch's manager of shared memory answers within a second or never: on a busy machine Hivemind's processes then drop
# what they were asked, with a line in the log, and who asked waits for good.
UNANSWERED = f"Hivemind: an averaging that was asked for did not begin within {ANSWER_SECONDS:g} s: a busy machine?"
LOOK_SECONDS = 0.002  # between two looks at an averaging's stage
MATCHMAKING, AVERAGING = AveragingStage.LOOKING_FOR_GROUP, AveragingStage.RUNNING_ALLREDUCE
# Bytes that this peer's processes packed for others, gradients and weights alike, in memory that forks share.
SENT = memoryview(mmap.mmap(-1, 16)).cast("Q")
# Times that this peer's processes averaged a part of a tensor without some peer, in memory that forks share: [int].
LOST = memoryview(mmap.mmap(-1, 8)).cast("Q")


def counting_losses(method: Any) -> Any:
    """Hivemind averages what it can and keeps its own for the rest: a whole round, but for a line in a log."""

    @functools.wraps(method)
    def counted(*args: Any, **options: Any) -> Any:
        LOST[0] += 1  # two at once may count as one, and never as none
        return method(*args, **options)

    return counted


TensorPartContainer.register_failed_reducer = counting_losses(TensorPartContainer.register_failed_reducer)
TensorPartReducer.on_sender_failed = counting_losses(TensorPartReducer.on_sender_failed)

_packing, _packs = threading.Lock(), [0]  # of this process, and its place in SENT: each averager has a process


def counting_bytes(compress: Any) -> Any:
    """A part of a tensor is packed for the peer that averages it, and its difference from the mean on the way back."""

    @functools.wraps(compress)
    def counted(*args: Any, **options: Any) -> Any:
        part = compress(*args, **options)
        with _packing:
            SENT[_packs[0]] += len(part.buffer)
        return part

    return counted


for packed in COMPRESSION.values():
    packed.compress = counting_bytes(packed.compress)


@dataclass
class Averaging:
    """The outcome of one averaging."""

    peers: int
    matchmaking_seconds: float
    averaging_seconds: float
    failure: str = ""  # why it was not whole

    def note_gradients(self, round: AveragingRound) -> str:
        """Note it in the round whose gradients were averaged; the failure that this is, if any."""
        round.peers, round.failure = self.peers, round.failure or self.failure
        round.matchmaking_seconds, round.averaging_seconds = self.matchmaking_seconds, self.averaging_seconds
        return self.failure

    def note_weights(self, round: AveragingRound) -> str:
        """Note it in the round after which weights were averaged; the failure that this is, if any."""
        round.weights_peers = self.peers
        round.weights_seconds = self.matchmaking_seconds + self.averaging_seconds
        failure = f"weights: {self.failure}" if self.failure else ""
        round.failure = round.failure or failure
        return failure


class AveragingWatch(threading.Thread):
    """Looks at an averaging until it is over, and then has its round noted what came of it."""

    def __init__(
        self, control: StepControl, round: AveragingRound | None, note: Callable[[Averaging, AveragingRound], str]
    ) -> None:
        super().__init__(daemon=True, name="watch of an averaging")
        self.control, self.round, self.note, self.lost, self.failure = control, round, note, LOST[0], ""
        self.start()

    def run(self) -> None:
        seconds = dict.fromkeys(AveragingStage, 0.0)
        stage, at = self.control.stage, time.perf_counter()
        while not self.control.done():
            time.sleep(LOOK_SECONDS)
            now = time.perf_counter()
            seconds[stage] += now - at
            stage, at = self.control.stage, now
        round = self.round  # none once another has its place
        if round and not self.control.cancelled():
            result = Averaging(1, seconds[MATCHMAKING], seconds[AVERAGING])
            try:
                result.peers = len(self.control.result(0))
            except Exception as error:
                result.failure = f"{type(error).__name__}: {error}".rstrip(": ")
            if LOST[0] > self.lost:
                result.failure = "a part of what was averaged came without some peer's"
            self.failure = self.note(result, round)

    def wait(self, stages: Sequence[AveragingStage], until: float) -> None:
        """Return once it is in none of these stages, or at that time of time.perf_counter."""
        while not self.control.done() and self.control.stage in stages and time.perf_counter() < until:
            time.sleep(LOOK_SECONDS)


class Watching(DecentralizedAverager):
    """Keeps a watch of the averaging that was asked for last, in the current one of `rounds`, if there are any."""

    watch: AveragingWatch | None = None
    rounds: AveragingRounds | None = None
    note = staticmethod(Averaging.note_gradients)
    packs = 0

    def run(self) -> None:
        _packs[0] = self.packs
        super().run()

    def step(self, *args: Any, **options: Any) -> Any:
        unanswered = threading.Timer(ANSWER_SECONDS, give_up, [UNANSWERED])
        unanswered.daemon = True
        unanswered.start()
        try:
            control = super().step(*args, **options)
        finally:
            unanswered.cancel()
        current = self.rounds.current if self.rounds else None
        if current and self.watch and self.watch.round is current:  # it failed early, and this takes its place
            self.watch.round = None
            self.watch.join(WRITTEN_SECONDS if self.watch.control.done() else 0.0)
            current.failure = "" if current.failure == self.watch.failure else current.failure
        self.watch = AveragingWatch(control, current, self.note)
        return control


# By which peers' weights may differ after ten steps in fp64 or one in fp32, relative to the largest: each adds to its
# own gradients their rounded difference from the mean. Seen: 2e-15, 3e-8, 1e-6 in fp16, 2e-3 in 8 bits.
APART = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-4, torch.uint8: 1e-2}
# With weights averaged in fp16 each peer keeps half of what was rounded off the other's, 2^-12 of a weight; the mean of
# both stays as it was, so it does not grow with the rounds.
STATES_APART = 1e-3
MEETING_SECONDS = 120.0  # that the first round waits for the other peers
SETTLING_SECONDS = 0.1  # in which what was told to the DHT has reached it, on one network


class Gradients(GradientAverager, Watching):
    """Gradients of all peers, averaged once in an averaging round."""


class Weights(TrainingStateAverager, Watching):
    """Weights of all peers, averaged in their own type: Hivemind's is fp32 whatever theirs, so fp64 is off by 6e-8.

    Beside the next batches, as a rule. The next update waits until that is over.
    """

    packs = 1
    phase: Phase
    asked_at = 0.0  # time.perf_counter, of the last update
    waited_seconds = 0.0  # of it, until it could begin

    def _make_host_tensor(self, source_tensor: torch.Tensor, force_copy: bool = False) -> torch.Tensor:
        if self.reuse_tensors and not force_copy:
            source_tensor.share_memory_()
            return source_tensor
        copy: torch.Tensor = source_tensor.detach().to("cpu", copy=True).share_memory_()
        copy.requires_grad_(source_tensor.requires_grad)
        return copy

    def step(self, *args: Any, **options: Any) -> Any:
        """As Hivemind's, whose update waits for the averaging before it: that is timed as averaging.

        Its means are written first. Hivemind writes them over the update of a round that averages no weights itself.
        """
        if options.get("averaging_round") and self.rounds and self.note is Averaging.note_weights:
            self.rounds.current.weights_peers = 0
        if not options.get("optimizer_step"):
            return super().step(*args, **options)
        self.asked_at, self.waited_seconds = time.perf_counter(), 0.0
        if not (self.reuse_tensors or self.delta_rule_averaging):  # these add to what is there
            options["wait_for_delayed_updates"] = True
        with self.phase("optimizer"):
            result = super().step(*args, **options)
        if self.rounds and not options.get("delay_optimizer_step"):
            self.phase.shift(self.waited_seconds, "optimizer", "averaging")
            self.rounds.current.weights_blocked_seconds += self.waited_seconds
        return result

    def _do(self, wait_for_trigger: Any, optimizer_step: bool, *args: Any, **options: Any) -> Any:
        if optimizer_step:
            self.waited_seconds = time.perf_counter() - self.asked_at
        return super()._do(wait_for_trigger, optimizer_step, *args, **options)


hivemind_optimizer.TrainingStateAverager = Weights  # which Hivemind's optimiser makes by this name


class Peer(hivemind.Optimizer):
    """Hivemind's optimiser of one peer. `contribute` is called after each backward; `rounds` says what came of it."""

    def __init__(self, trial: Trial, ranks: PeerRanks, optimizer: torch.optim.Optimizer, phase: Phase) -> None:
        """`optimizer` says which, and of what; the one that steps is `opt`."""
        late = {None: 0, "delayed": 1, "local": None}[trial.updates]
        self.ranks, self.phase, self.rounds = ranks, phase, AveragingRounds(ranks.world_size, late)
        self.sent_bytes = 0  # until this round began
        self.exact, self.local = trial.find == "parity", trial.updates == "local"
        self.wire_type = ON_THE_WIRE.get(trial.allreduce)
        self.state_wire_type = ON_THE_WIRE.get(trial.state_allreduce or "")
        groups = optimizer.param_groups
        before = [parameter.detach().clone() for parameter in _parameters(optimizer)]
        matchmaking = trial.matchmaking_seconds or MATCHMAKING_SECONDS
        averager = {"request_timeout": min(3.0, matchmaking / 2)}  # no shorter than matchmaking, it may deadlock
        how: dict[str, Any] = {"optimizer": optimizer}
        if trial.updates == "delayed":
            how = {
                "optimizer": type(optimizer),
                "params": [dict(group) for group in groups],
                "offload_optimizer": True,
                "delay_grad_averaging": True,
                "delay_optimizer_step": True,
            }
        if self.local:
            how["use_local_updates"] = True
        else:
            how["grad_averager_factory"] = functools.partial(Gradients, **averager)
            how["grad_compression"] = COMPRESSION[trial.allreduce]()
        with ending_with_this_process(), default_type(before[0].dtype):
            super().__init__(
                dht=ranks.swarm.node(),
                run_id=ranks.swarm.name(),
                target_batch_size=trial.global_batch,
                batch_size_per_step=trial.batch_per_worker,
                matchmaking_time=matchmaking,
                averaging_timeout=trial.averaging_timeout_seconds or AVERAGING_TIMEOUT_SECONDS,
                average_state_every=trial.average_state_every or 1,
                state_averaging_compression=COMPRESSION[trial.state_allreduce or "fp32"](),
                averager_opts=averager,
                **how,
            )
        (self.state_averager if self.local else self.grad_averager).rounds = self.rounds
        if not trial.updates:  # delayed ones are made by another thread, in whatever round that is
            self.state_averager.rounds, self.state_averager.note = self.rounds, Averaging.note_weights
        take_back_first_step(self.opt, before)

    def _make_state_averager(self, **options: Any) -> Weights:
        weights: Weights = super()._make_state_averager(**options)
        weights.phase = self.phase
        return weights

    def contribute(self, samples: int) -> bool:
        """Add the gradients of so many samples to this averaging round; True where it is over."""
        epoch, self.rounds.current.samples = self.local_epoch, self.rounds.current.samples + samples
        if not self.local and (self.exact or not self.rounds.over):
            self._check_and_accumulate_gradients(samples, None)
            self._wait_for_peers()
            self._maybe_schedule_gradient_averaging()
            if self.tracker.global_progress.samples_accumulated >= self.target_batch_size or self._behind():
                self._update_global_epoch(None)
        else:
            if not self.rounds.over:
                self.tracker.report_local_progress(self.local_epoch, samples)
                self._wait_for_peers()
                self.tracker.report_local_progress(self.local_epoch, 0)
            self.step(batch_size=samples)
        if self.local_epoch == epoch:
            return False
        if not self.local:
            self.gradients_sent(self._as_sent(self.wire_type))
        self.weights_sent(self._as_sent(self.state_wire_type, self.average_state_every))
        self.rounds.current.sent_bytes, self.sent_bytes = sum(SENT) - self.sent_bytes, sum(SENT)
        self.rounds.end()
        return True

    def load_state_from_peers(self, **options: Any) -> None:
        """As Hivemind's, which then drops what this peer has read; so local updates catch up with who is ahead."""
        if not self.local:
            self.rounds.current.failure = "this peer was behind, and took another's weights"
        super().load_state_from_peers(**options)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile nothing is trained, by any peer: else Hivemind takes it that samples come in all the time."""
        with self.tracker.pause_updates():
            yield
            self.tracker.report_local_progress(self.local_epoch, self.tracker.local_progress.samples_accumulated)
            self.ranks.total([0.0])
            time.sleep(SETTLING_SECONDS)

    def checked_weights(self, model: torch.nn.Module) -> dict[str, Any]:
        """This peer's weights. Raises RuntimeError where another's are not the same within its type's rounding."""
        mine = torch.cat([p.detach().reshape(-1).cpu() for p in model.parameters()])
        sent = self.ranks.swarm.bytes_of_first(mine.numpy().tobytes())
        first = torch.frombuffer(bytearray(sent), dtype=mine.dtype)
        apart = float((mine - first).abs().max() / first.abs().max())
        most = self.ranks.total([apart])[0]
        allowed = STATES_APART if self.state_wire_type else APART[self.wire_type or mine.dtype]
        if not most <= allowed:  # nor is what is not a number
            raise RuntimeError(f"peers hold other weights: off by {most:.1e} of the largest")
        return model.state_dict()

    def _behind(self) -> bool:
        return bool(self.tracker.global_epoch > self.local_epoch)

    def _wait_for_peers(self) -> None:
        """Until every peer is seen; a parity gate's also until each has given its batch."""
        wanted, deadline = self.target_batch_size if self.exact else 1, time.monotonic() + MEETING_SECONDS
        while True:
            progress = self.tracker.global_progress
            there = progress.num_peers >= self.rounds.peers and progress.samples_accumulated >= wanted
            if there or self._behind():
                return
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"after {MEETING_SECONDS:.0f} s this peer sees {progress.num_peers} of {self.rounds.peers} peers, "
                    f"with {progress.samples_accumulated} of {self.target_batch_size} samples"
                )
            time.sleep(LOOK_SECONDS)

    def _begin_averaging_gradients(self, grad_scaler: Any) -> bool:
        """As Hivemind's, which goes on by this peer's own gradients where it cannot."""
        began: bool = super()._begin_averaging_gradients(grad_scaler)
        if not began:
            if self.grad_averager.watch:
                self.grad_averager.watch.round = None  # of an averaging to which this peer gives nothing
            self.rounds.current.peers = 1
            self.rounds.current.failure = "no averaging began: " + (
                "there were no other peers" if self.tracker.global_progress.num_peers < 2 else "Hivemind's log has why"
            )
        return began

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control: StepControl | None) -> None:
        """As Hivemind's, whose log alone would say that a peer goes on by gradients of its own."""
        watch = self.grad_averager.watch
        if threading.current_thread() is threading.main_thread():  # else nothing waits for it
            start = time.perf_counter()
            until = start + self.averaging_timeout
            with self.phase("matchmaking"):
                watch.wait((AveragingStage.IDLE, MATCHMAKING), until)
            found = time.perf_counter()
            with self.phase("averaging"):
                watch.wait(tuple(AveragingStage), until)
            round = self.rounds.current
            round.matchmaking_blocked_seconds = found - start
            round.averaging_blocked_seconds = time.perf_counter() - found
            watch.join(WRITTEN_SECONDS if watch.control.done() else 0.0)
            if not watch.control.done():  # Hivemind's wait would begin anew
                watch.round = None
                round.peers, round.failure = 1, f"not over after {self.averaging_timeout:g} s"
                maybe_step_control = None
        super()._average_gradients_and_load_into_optimizer(maybe_step_control)

    def _as_sent(self, wire_type: torch.dtype | None, every: int = 1) -> list[torch.Tensor]:
        """Tensors of no memory, of as many bytes as this model's have on the wire, spread over so many rounds."""
        sizes = [(p.numel() // every, wire_type or p.dtype) for p in _parameters(self.opt)]
        return [torch.empty(size, dtype=dtype, device="meta") for size, dtype in sizes]

    def gradients_sent(self, tensors: Sequence[torch.Tensor]) -> None:
        """Called with what the averaging of gradients exchanges in a round, to be counted (wire.watch)."""

    def weights_sent(self, tensors: Sequence[torch.Tensor]) -> None:
        """Called with what the averaging of weights exchanges, as often as it is due: Hivemind leaves out some."""


@contextlib.contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """New tensors have this type, in processes forked meanwhile for good: Hivemind sums gradients in the default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@torch.no_grad()
def take_back_first_step(optimizer: torch.optim.Optimizer, before: Sequence[torch.Tensor]) -> None:
    """Hivemind makes the optimiser's state by a step with gradients of zero, which decays weights and counts as one."""
    for parameter, value in zip(_parameters(optimizer), before, strict=True):
        parameter.copy_(value)
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def one_round_a_step(workload: Workload, trial: Trial, ranks: PeerRanks) -> Workload:
    """The workload, whose step is a round: so many samples of this peer, if all give equally many.

    An epoch has whole rounds, as others' have whole steps.
    """
    batches = trial.global_batch / (trial.batch_per_worker * ranks.world_size)
    workload.samples_per_step = trial.global_batch // ranks.world_size
    workload.steps_per_epoch = max(1, int(workload.steps_per_epoch / batches))
    return workload


PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
MOST_BYTES = 1 << 20  # of one value at the store; it refuses some 8 MiB
LONGEST_WAIT = timedelta(hours=1)  # for another rank; launchers end us where one has died
LONGEST_FOLDER = 60  # characters before the name of a socket, which may have some hundred in all
if len(folder := tempfile.gettempdir()) > LONGEST_FOLDER:
    # Where nobody removes them after a kill. torch and multiprocessing have such sockets too.
    os.environ["TMPDIR"] = tempfile.tempdir = folder = "/tmp"
P2P._UNIX_SOCKET_PREFIX = f"/unix{folder}/hivemind-"
TRIES = 4  # to find the DHT, of some seconds each
IN_VAIN = "none of the initial_peers responded"  # Hivemind's words for a try in vain
NO_INTERNET = {"use_ipfs": False, "use_relay": False, "use_auto_relay": False}


def first_answered(**options: Any) -> hivemind.DHT:
    """A node of the DHT. On a busy machine those that are there miss Hivemind's 3 s: they are asked TRIES times.

    Raises RuntimeError, as Hivemind does.
    """
    for _ in range(TRIES - 1):
        try:
            return hivemind.DHT(**options)
        except RuntimeError as error:
            if IN_VAIN not in str(error):
                raise
    return hivemind.DHT(**options)


class Swarm:
    """This process among its peers: its node of Hivemind's DHT, and beside it the launcher's store, at which ranks tell
    each other numbers and words such as the clock's."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.store, self.rank, self.size, self.count = store, rank, size, 0
        self._node: Any = None
        store.set_timeout(LONGEST_WAIT)

    def node(self) -> Any:
        """This peer's node of the DHT, started by the first call: rank 0's first, and the others by its addresses.

        Not as ranks join: what fails here fails where `abandon` is known.
        """
        if self._node is None:
            known = self.of_first(list) if self.rank else None
            with ending_with_this_process():
                address = f"/ip4/{own_address()}/tcp/0"
                self._node = first_answered(initial_peers=known, host_maddrs=[address], start=True, **NO_INTERNET)
            if known is None:
                self.of_first(lambda: [str(address) for address in self._node.get_visible_maddrs()])
        return self._node

    def name(self) -> str:
        """A new name, the same on every rank."""
        return str(self.of_first(lambda: uuid.uuid4().hex))

    def of_first(self, make: Callable[[], Any]) -> Any:
        """A value that rank 0 makes, on every rank; anything that JSON holds."""
        self.count += 1
        key = f"first/{self.count}"
        if self.rank == 0:
            self.store.set(key, json.dumps(make()))
        return json.loads(self.store.get(key))

    def bytes_of_first(self, data: bytes) -> bytes:
        """Rank 0's, on every rank. All give equally many. In parts: the store closes a connection that sends more."""
        self.count += 1
        parts = []
        for start in range(0, len(data), MOST_BYTES):
            key = f"bytes/{self.count}/{start}"
            if self.rank == 0:
                self.store.set(key, data[start : start + MOST_BYTES])  # type: ignore[arg-type]  # it takes bytes too
            parts.append(bytes(self.store.get(key)))
        return b"".join(parts)

    def agree(self, value: float) -> float:
        """Rank 0's number, on every rank."""
        return float(self.of_first(lambda: value))

    def total(self, values: Sequence[float]) -> list[float]:
        """The sum of all ranks' numbers, place by place."""
        self.count += 1
        self.store.set(f"of {self.rank}/{self.count}", json.dumps(list(values)))
        rows = [json.loads(self.store.get(f"of {rank}/{self.count}")) for rank in range(self.size)]
        return [sum(column) for column in zip(*rows, strict=True)]

    def leave(self) -> None:
        """End this process, once every rank is here: one that leaves early stalls the others.

        All that it started ends with it. Hivemind's own way would wait for averagings that are under way, for up to
        their time-out where a peer has left already, and the interpreter's for threads that never end. The first, which
        may hold the store, stays until the others need it no more.
        """
        self.total([0.0])
        if self.rank:
            self.store.set(f"closed by {self.rank}", "")
        else:
            self.store.wait([f"closed by {rank}" for rank in range(1, self.size)])
        _exit(0)


@dataclass(frozen=True)
class PeerRanks(Ranks):
    """One process's place, with its peers."""

    swarm: Swarm = field(kw_only=True)


def join_hivemind(trial: Trial) -> Ranks:
    """Meet at the store; Hivemind's own network begins with the first peer that is built.

    Raises SystemExit where there is one process: it would have nobody to average with.
    """
    if not told_to_meet("Hivemind") or _world_size() < 2:
        raise SystemExit("one worker has no peers, and Hivemind needs two: torchrun --nproc-per-node 2 starts them")
    cores, device = claim_cores(trial), claim_device(trial)
    _daemon_cores.extend(parted(cores, trial.daemon_cores or 0))
    store, rank, size = next(iter(dist.rendezvous("env://")))
    swarm = Swarm(store, rank, size)
    return PeerRanks(
        rank=rank,
        world_size=size,
        local_rank=local_rank(),
        device=device,
        cores=cores,
        agree=swarm.agree,
        backend={
            "version": hivemind.__version__,
            "transport": "libp2p",
            "daemon_cores": ",".join(map(str, _daemon_cores)),  # empty: all that this process has
        },
        leave=swarm.leave,
        total=swarm.total,
        abandon=abandon,
        swarm=swarm,
    )


def parted(cores: Sequence[int], daemon_cores: int) -> Sequence[int]:
    """The last so many of this peer's cores; it computes on the others from now on. Raises SystemExit where none is
    left, or nothing is pinned."""
    if why := no_core_left(daemon_cores, len(cores)):
        raise SystemExit(why)
    if not daemon_cores:
        return ()
    pin(cores[:-daemon_cores])
    return cores[-daemon_cores:]


def own_address() -> str:
    """This host's address in the network that the frameworks are told to use; without one, that from which the store's
    is reached. Nothing is sent. Raises RuntimeError where other hosts cannot reach it."""
    named = psutil.net_if_addrs().get(os.environ.get("GLOO_SOCKET_IFNAME", ""), ())
    ours = [address.address for address in named if address.family == socket.AF_INET]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(os.environ["MASTER_ADDR"]), 9))
        address = ours[0] if ours else str(probe.getsockname()[0])
    if address.startswith("127.") and int(os.environ.get("LOCAL_WORLD_SIZE", 0)) not in (0, _world_size()):
        raise RuntimeError(
            f"other hosts cannot reach this one at {address}, where {os.environ['MASTER_ADDR']} leads: "
            "give the machine file an interface, or the host another address (docs/guide/hosts-and-slurm.md)"
        )
    return address


def _world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def ending_with_this_process() -> Iterator[None]:
    """Have what is started meanwhile die with this process, however that ends (Linux: PR_SET_PDEATHSIG).

    Hivemind forks a process for its DHT and for each averager, and the first of them starts its daemon. All of them
    outlive a killed parent by themselves. It also makes this process deaf to Ctrl-C, which is taken back.
    """
    interrupt, start = signal.getsignal(signal.SIGINT), asyncio.subprocess.create_subprocess_exec
    _forking.append(True)

    async def started(*words: Any, **options: Any) -> Any:
        return await start(*words, **{**options, "preexec_fn": die_with_parent})

    asyncio.subprocess.create_subprocess_exec = started
    try:
        yield
    finally:
        _forking.pop()
        asyncio.subprocess.create_subprocess_exec = start
        signal.signal(signal.SIGINT, interrupt)


def begin_as_child() -> None:
    """End with the parent, and run where Hivemind's own processes are to; what this process starts does so too."""
    die_with_parent()
    if _daemon_cores:
        os.sched_setaffinity(0, _daemon_cores)


def die_with_parent() -> None:
    """Be killed once the parent is dead."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


_forking: list[bool] = []  # not empty while what this process forks is to end with it; its children keep it so
_daemon_cores: list[int] = []  # of Hivemind's own processes; empty: this process's
os.register_at_fork(after_in_child=lambda: begin_as_child() if _forking else None)


def abandon() -> None:
    """Say what went wrong and end this process at once: Hivemind's own threads would keep a failed one."""
    error = sys.exc_info()[1]
    give_up(str(error) if isinstance(error, SystemExit) else traceback.format_exc())


def give_up(why: str) -> None:
    """Say why and end this process at once, from any thread."""
    print(why, file=sys.stderr)
    _exit(1)


def _exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
