"""How long Hivemind's averagings take, and whether all peers took part in them.                            [torch]

Gradients of one round may be averaged while the weights of the round before still are; a part of a tensor that is lost
meanwhile counts against both.
"""

from __future__ import annotations

import functools
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.partition import TensorPartContainer, TensorPartReducer

from scaling_study.measure.rounds import Round, Rounds
from scaling_study.worker.with_hivemind import give_up

WRITTEN_SECONDS = 10.0  # for a watch to note what came of an averaging that is over
ANSWER_SECONDS = 60.0  # for the process that averages to say that it has begun
# torch's manager of shared memory answers within a second or never: on a busy machine Hivemind's processes then drop
# what they were asked, with a line in the log, and who asked waits for good.
UNANSWERED = f"Hivemind: an averaging that was asked for did not begin within {ANSWER_SECONDS:g} s: a busy machine?"
LOOK_SECONDS = 0.002  # between two looks at an averaging's stage
MATCHMAKING, AVERAGING = AveragingStage.LOOKING_FOR_GROUP, AveragingStage.RUNNING_ALLREDUCE
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


@dataclass
class Averaging:
    """What came of one."""

    peers: int
    matchmaking_seconds: float
    averaging_seconds: float
    failure: str = ""  # why it was not whole


def of_round(round: Round, averaging: Averaging) -> str:
    """Note what came of what the round is about; the failure that it has for it."""
    round.peers, round.failure = averaging.peers, round.failure or averaging.failure
    round.matchmaking_seconds, round.averaging_seconds = averaging.matchmaking_seconds, averaging.averaging_seconds
    return averaging.failure


def of_weights(round: Round, averaging: Averaging) -> str:
    """Likewise of weights that are averaged after the round."""
    round.weights_peers, round.weights_seconds = (
        averaging.peers, averaging.matchmaking_seconds + averaging.averaging_seconds
    )  # fmt: skip
    failure = f"weights: {averaging.failure}" if averaging.failure else ""
    round.failure = round.failure or failure
    return failure


class Watch(threading.Thread):
    """Looks at an averaging until it is over, and then has its round noted what came of it."""

    def __init__(self, control: StepControl, round: Round | None, note: Callable[[Round, Averaging], str]) -> None:
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
            self.failure = self.note(round, result)

    def wait(self, stages: Sequence[AveragingStage], until: float) -> None:
        """Return once it is in none of these stages, or at that time of time.perf_counter."""
        while not self.control.done() and self.control.stage in stages and time.perf_counter() < until:
            time.sleep(LOOK_SECONDS)


class Watching(DecentralizedAverager):
    """Keeps a watch of the averaging that was asked for last. `rounds`: whose current round that belongs to, if any."""

    watch: Watch | None = None
    rounds: Rounds | None = None
    note = staticmethod(of_round)

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
        self.watch = Watch(control, current, self.note)
        return control
