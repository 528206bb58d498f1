"""Hivemind's optimiser, with every round of it watched.                                                   [torch]

    a batch | a batch | ... all peers together have the target batch | gradients averaged | step | a batch | ...
                    looking for each other ..........................|                           | weights averaged

A round is what torch calls a step. Nothing of Hivemind's algorithm is changed. What is added: the first round waits
until every peer is there; a parity gate's peers give one batch each; weights are averaged in their own type.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import hivemind
import torch
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager

from scaling_study.measure.phases import Phase
from scaling_study.measure.rounds import Rounds
from scaling_study.study.peers import AVERAGING_TIMEOUT_SECONDS, MATCHMAKING_SECONDS
from scaling_study.trial import Trial
from scaling_study.worker.hivemind_compression import COMPRESSION, ON_THE_WIRE
from scaling_study.worker.hivemind_watch import LOOK_SECONDS, MATCHMAKING, WRITTEN_SECONDS, Watching, of_weights
from scaling_study.worker.with_hivemind import PeerRanks, ending_with_this_process
from scaling_study.workloads import Workload

# By which peers' weights may differ after ten steps in fp64 or one in fp32, relative to the largest: each adds to its
# own gradients their rounded difference from the mean. Seen: 2e-15, 3e-8, 1e-6 in fp16, 2e-3 in 8 bits.
APART = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-4, torch.uint8: 1e-2}
MEETING_SECONDS = 120.0  # that the first round waits for the other peers
SETTLING_SECONDS = 0.1  # in which what was told to the DHT has reached it, on one network


class Gradients(GradientAverager, Watching):
    """Gradients of all peers, averaged once a round."""


class Weights(TrainingStateAverager, Watching):
    """Weights of all peers, averaged in their own type: Hivemind's is fp32 whatever theirs, so fp64 is off by 6e-8.

    Beside the next batches, as a rule. The next update waits until that is over.
    """

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
        """As Hivemind's, whose update waits for the averaging before it: that is timed as averaging."""
        if options.get("averaging_round") and self.rounds and self.note is of_weights:
            self.rounds.current.weights_peers = 0
        if not options.get("optimizer_step"):
            return super().step(*args, **options)
        self.asked_at, self.waited_seconds = time.perf_counter(), 0.0
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


class Peer(hivemind.Optimizer):
    """Hivemind's optimiser of one peer. `contribute` is called after each backward; `rounds` says what came of it."""

    def __init__(self, trial: Trial, ranks: PeerRanks, optimizer: torch.optim.Optimizer, phase: Phase) -> None:
        """`optimizer` says which, and of what; the one that steps is `opt`."""
        late = {None: 0, "delayed": 1, "local": None}[trial.updates]
        self.ranks, self.phase, self.rounds = ranks, phase, Rounds(ranks.world_size, late)
        self.exact, self.local = trial.find == "parity", trial.updates == "local"
        self.wire_type = ON_THE_WIRE.get(trial.allreduce)
        groups = optimizer.param_groups
        before = [parameter.detach().clone() for parameter in _parameters(optimizer)]
        matchmaking = trial.matchmaking_seconds or MATCHMAKING_SECONDS
        averager = {"request_timeout": min(3.0, matchmaking / 2)}  # no shorter than matchmaking, it may deadlock
        how: dict[str, Any] = {"optimizer": optimizer}
        if trial.updates == "delayed":
            how = {
                "optimizer": type(optimizer), "params": [dict(group) for group in groups],
                "offload_optimizer": True, "delay_grad_averaging": True, "delay_optimizer_step": True,
            }  # fmt: skip
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
                averager_opts=averager,
                **how,
            )
        (self.state_averager if self.local else self.grad_averager).rounds = self.rounds
        if not trial.updates:  # delayed ones are made by another thread, in whatever round that is
            self.state_averager.rounds, self.state_averager.note = self.rounds, of_weights
        take_back_first_step(self.opt, before)

    def _make_state_averager(self, **options: Any) -> Weights:
        weights = Weights(
            dht=self.dht, prefix=f"{self.run_id}_state_averager", min_matchmaking_time=self.matchmaking_time,
            allreduce_timeout=self.allreduce_timeout, shutdown_timeout=self.shutdown_timeout,
            offload_optimizer=self.offload_optimizer, custom_gradients=self.offload_optimizer,
            status_loglevel=self.status_loglevel, next_chunk_timeout=self.next_chunk_timeout,
            client_mode=self.client_mode, auxiliary=self.auxiliary, start=True, **options,
        )  # fmt: skip
        weights.phase = self.phase
        return weights

    def contribute(self, samples: int) -> bool:
        """Add the gradients of so many samples to this round; whether it is over."""
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
        self.weights_sent(self._as_sent(None, self.average_state_every))
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
        sent = self.ranks.swarm.board.bytes_of_first(mine.numpy().tobytes())
        first = torch.frombuffer(bytearray(sent), dtype=mine.dtype)
        apart = float((mine - first).abs().max() / first.abs().max())
        most = self.ranks.total([apart])[0]
        if not most <= APART[self.wire_type or mine.dtype]:  # nor is what is not a number
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
        return [
            torch.empty(p.numel() // every, dtype=wire_type or p.dtype, device="meta") for p in _parameters(self.opt)
        ]

    def gradients_sent(self, tensors: Sequence[torch.Tensor]) -> None:
        """Called with what the averaging of gradients exchanges in a round, to be counted (wire.watch)."""

    def weights_sent(self, tensors: Sequence[torch.Tensor]) -> None:
        """Likewise of weights, as often as they are to be averaged: Hivemind leaves out some while others are."""


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
