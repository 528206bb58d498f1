"""What each stage of a pipeline did when: the events that a bubble is measured from.                     [torch]

    step 3   worker 0   F0 F1 F2 F3 .  .  B0 B1 B2 B3        [3, "forward", stage 0, micro-batch 0, start, end], ...
             worker 1   .  F0 F1 F2 F3 B0 B1 B2 B3           `.` idle: what no event covers

Recorded in the instrumented window only, as phases are. Times are seconds on one clock: rank 0's, which every rank of
its host can read; a rank elsewhere counts from the moment at which it received rank 0's, some 0.1 ms later. Hosts are
compared by name and boot: monotonic clocks of two hosts that booted together look alike.
"""

from __future__ import annotations

import socket
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from scaling_study.machine import boot_id
from scaling_study.measure.phases import NOTHING, Phase

PHASE_OF = {
    "forward": "forward", "backward": "backward", "backward_input": "backward", "backward_weight": "backward",
}  # fmt: skip


class Timeline:
    """Call it with kind, stage and micro-batch for the context that notes when it began and ended."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.events: list[list[Any]] = []
        self.step, self._zero = 0, 0.0

    def begin(self, agree: Callable[[float], float]) -> None:
        """Set the zero that all ranks share. Called by all of them."""
        zero = agree(time.perf_counter())
        here = time.perf_counter()
        mine = clock_of_this_host()
        self._zero = zero if agree(mine) == mine else here

    def __call__(self, kind: str, stage: int, micro_batch: int) -> AbstractContextManager[None]:
        return self._noted(kind, stage, micro_batch) if self.phase.on else NOTHING

    @contextmanager
    def _noted(self, kind: str, stage: int, micro_batch: int) -> Iterator[None]:
        with self.phase(PHASE_OF[kind]):
            start = time.perf_counter() - self._zero
            yield
            self.phase.reached()
            end = time.perf_counter() - self._zero
        event = [self.step, kind, stage, micro_batch]
        if self.events and self.events[-1][:4] == event:  # the loss goes on where its forward ended
            self.events[-1][5] = end
        else:
            self.events.append([*event, start, end])


def clock_of_this_host() -> float:
    """A number for whose monotonic clock this is: the host's name and its boot, as far as it says which."""
    return float(zlib.crc32(f"{socket.gethostname()} {boot_id()}".encode()))
