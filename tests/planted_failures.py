"""What may fail in a block of one configuration, for a user's package to import (test_user_workload.py)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import torch

# Configurations, told apart by their batches.
CLEAN, OUT_OF_MEMORY_AMONG_OTHERS, OUT_OF_MEMORY, LATE, OPENING = range(1, 6)
LATE_ROUND = 3  # in which LATE fails
WORDS = "as planted"


class Failing(torch.optim.SGD):
    """Fails in its timed steps: OUT_OF_MEMORY also in those of a launch of its own."""

    def __init__(self, parameters: Iterable[torch.Tensor], rate: float, number: int) -> None:
        super().__init__(parameters, lr=rate)
        self.number = number

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        round, timed = now_timed()
        if (self.number, round) == (OUT_OF_MEMORY_AMONG_OTHERS, 0) or (self.number == OUT_OF_MEMORY and timed):
            raise MemoryError(WORDS)
        if (self.number, round) == (LATE, LATE_ROUND):
            raise ValueError(WORDS)
        if self.number == OPENING and round:  # not in the first, from which rounds may begin anew
            os.open(os.devnull, os.O_RDONLY)  # left open on purpose
        return result


def now_timed() -> tuple[int | None, bool]:
    """The round of the block that this step is in, if it is in one, and whether it is timed."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_name == "timed_block":
            return int(frame.f_locals["round"]), True
        if frame.f_code.co_name == "run_window":
            return None, True
    return None, False
