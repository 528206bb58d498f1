"""Where a step's time goes: data, forward, backward, exposed communication, optimiser.                 [torch]

A script marks the parts of its step, `with phase("forward"): ...`. In the timed window that does nothing.
In the instrumented window each part is timed between two waits for the device, which disturbs what it
measures; so its step time is reported beside the undisturbed one, and what no mark covers is named.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from scaling_study.records import store

NAMES = ("data", "forward", "backward", "communication", "matchmaking", "averaging", "optimizer")
NOTHING = nullcontext()


class Phase:
    """Call it with a phase's name for the context that times it."""

    def __init__(self, device: torch.device, *further: torch.device) -> None:
        self.devices = (device, *further)
        self.on = False
        self.entered: Callable[[str], None] | None = None  # who else wants to know that a phase begins (arrivals.py)
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

    def means(self, steps: int, seconds: float) -> store.Phases:
        """Means over `steps` instrumented steps that took `seconds` in all. Unmarked phases are None."""
        means = {f"{name}_seconds": self.seconds[name] / steps for name in NAMES if name in self.seconds}
        rest = (seconds - sum(self.seconds.values())) / steps
        return store.Phases(steps=steps, step_seconds=seconds / steps, unattributed_seconds=rest, **means)


def now(*devices: torch.device) -> float:
    """Seconds on a monotonic clock, once the devices have finished all they were given."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter()
