"""What a workload may change for all that share its process, by the name that it is found under; and one that does.

A user's package imports this (test_user_workload.py): configuration number n changes the n-th setting in each of its
timed steps, after the step.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from scaling_study.worker.in_blocks import SETTINGS, changed

LEAKS: dict[str, Callable[[], object]] = {
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


def flipped(owner: object, name: str) -> None:
    setattr(owner, name, not getattr(owner, name))


class Leaking(torch.optim.SGD):
    """Raises RuntimeError for a timed step that finds a setting of another configuration."""

    def __init__(self, parameters: Iterable[torch.Tensor], rate: float, number: int) -> None:
        """`number`: from 1; one that is beyond LEAKS changes nothing."""
        super().__init__(parameters, lr=rate)
        self.leak = dict(enumerate(LEAKS.values(), 1)).get(number)
        self.built_with = {name: read() for name, (read, _) in SETTINGS.items()}

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        if in_a_timed_block():
            if others := changed(self.built_with):
                raise RuntimeError(f"timed with another configuration's {', '.join(others)}")
            if self.leak:
                self.leak()
        return result


def in_a_timed_block() -> bool:
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_name == "timed_block":
            return True
    return False
