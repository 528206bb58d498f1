"""Seconds of every step, with no gap between two steps and no synchronisation inside them.             [torch]

On a CPU the host's clock is read once a step. On a GPU the host runs ahead of the device, and waiting for it
each step would slow what is measured: an event is recorded between steps and read when the block is over.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from scaling_study.measure.phases import now


class Stopwatch:
    """`start()`, then `lap()` after each step, then `seconds()`: one number a lap."""

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
