"""How long Hivemind's averagings take, and whether all peers took part in them.                            [torch]"""

from __future__ import annotations

import functools
import mmap
import threading
import time
from collections.abc import Sequence
from typing import Any

from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.partition import TensorPartContainer, TensorPartReducer

from scaling_study.measure.rounds import Round, Rounds

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


class Watch(threading.Thread):
    """Looks at an averaging until it is over, and then writes into its round what came of it."""

    def __init__(self, control: StepControl, round: Round | None) -> None:
        super().__init__(daemon=True, name="watch of an averaging")
        self.control, self.round, self.lost = control, round, LOST[0]
        self.start()

    def run(self) -> None:
        seconds = dict.fromkeys(AveragingStage, 0.0)
        stage, at = self.control.stage, time.perf_counter()
        while not self.control.done():
            time.sleep(LOOK_SECONDS)
            now = time.perf_counter()
            seconds[stage] += now - at
            stage, at = self.control.stage, now
        if self.round and not self.control.cancelled():  # one that was cancelled had another in its place
            self.round.matchmaking_seconds, self.round.averaging_seconds = seconds[MATCHMAKING], seconds[AVERAGING]
            try:
                self.round.peers = len(self.control.result(0))
            except Exception as error:
                self.round.peers, self.round.failure = 1, f"{type(error).__name__}: {error}".rstrip(": ")
            if LOST[0] > self.lost:
                self.round.failure = "a part of what was averaged came without some peer's"

    def wait(self, stages: Sequence[AveragingStage], until: float) -> None:
        """Return once it is in none of these stages, or at that time of time.perf_counter."""
        while not self.control.done() and self.control.stage in stages and time.perf_counter() < until:
            time.sleep(LOOK_SECONDS)


class Watching(DecentralizedAverager):
    """Keeps a watch of the averaging that was asked for last. `rounds`: whose current round that belongs to, if any."""

    watch: Watch | None = None
    rounds: Rounds | None = None

    def step(self, *args: Any, **options: Any) -> Any:
        control = super().step(*args, **options)
        self.watch = Watch(control, self.rounds.current if self.rounds else None)
        return control
