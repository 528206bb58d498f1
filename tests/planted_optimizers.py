"""Optimisers of a user's package (test_user_workload.py): what configurations of one process may do to each other.

`Leaking` changes, in each of its timed steps, what all in its process share; `Failing` fails in a timed step.
Configurations are told apart by their batches, which are their `number`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from scaling_study.worker.in_blocks import SETTINGS, changed

LEAKS: dict[str, Callable[[], object]] = {  # by the name that each is found under, in the order of their numbers from 1
    "threads of torch": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "cores": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "default type": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "gradients": lambda: torch.set_grad_enabled(False),
    "anomaly detection": lambda: torch.set_anomaly_enabled(True),
    "autocast on the CPU": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast on a GPU": lambda: torch.set_autocast_enabled("cuda", True),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "formats of fp32": lambda: torch.set_float32_matmul_precision("medium"),
    "cuDNN": lambda: flipped(torch.backends.cudnn, "enabled"),
    "cuDNN's trials": lambda: flipped(torch.backends.cudnn, "benchmark"),
    "cuDNN's determinism": lambda: flipped(torch.backends.cudnn, "deterministic"),
    "oneDNN": lambda: flipped(torch.backends.mkldnn, "enabled"),
    "garbage collector": lambda: gc.set_threshold(1, 2, 3),
    "environment": lambda: os.environ.update(LEFT_BEHIND="1"),
    "working folder": lambda: os.chdir("/"),
}
CLEAN, OUT_OF_MEMORY_AMONG_OTHERS, OUT_OF_MEMORY, LATE, OPENING = range(1, 6)  # numbers of those that may fail
LATE_ROUND = 3  # in which LATE fails
WORDS = "as planted"


def flipped(owner: object, name: str) -> None:
    setattr(owner, name, not getattr(owner, name))


class Leaking(torch.optim.SGD):
    """Raises RuntimeError for a timed step that finds a setting of another configuration."""

    def __init__(self, parameters: Iterable[torch.Tensor], rate: float, number: int) -> None:
        """`number`: one that is beyond LEAKS changes nothing."""
        super().__init__(parameters, lr=rate)
        self.leak = dict(enumerate(LEAKS.values(), 1)).get(number)
        self.built_with = {name: read() for name, (read, _) in SETTINGS.items()}

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        if now_timed()[0] is not None:
            if others := changed(self.built_with):
                raise RuntimeError(f"timed with another configuration's {', '.join(others)}")
            if self.leak:
                self.leak()
        return result


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
