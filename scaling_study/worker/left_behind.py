"""What a configuration leaves in its process that nobody can take back: its launch then ends.              [torch]

    at once      hooks that every model or optimiser runs, modes of torch, process groups, tracers, exit handlers
    block by     threads, processes and open files that are more after each of several blocks in a row; memory
    block        that grows by megabytes in each

What can be put back is (global_state.py). What cannot would be run, held or paid for by all that share the process.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist
from torch import overrides
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils import _python_dispatch as dispatch

GROWING_BLOCKS = 5  # in a row, after which what grew in each is taken for a leak: pools of threads fill by and by
LEAST_BYTES = 4 << 20  # by which memory grows in a block that leaks: a step's buffers are returned


class LeftBehind(RuntimeError):
    """A configuration cannot be measured beside others. It says what it left."""


def _sizes(owner: Any, *names: str) -> Callable[[], int]:
    return lambda: sum(len(getattr(owner, name, ())) for name in names)


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _processes() -> int:
    return sum(len(children.read_text().split()) for children in Path("/proc/self/task").glob("*/children"))


def _groups() -> int:
    return len(dist.distributed_c10d._world.pg_map) if dist.is_available() and dist.is_initialized() else 0


AT_ONCE: Mapping[str, Callable[[], int]] = {
    "hooks on every module": _sizes(
        modules, "_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks",
        "_global_backward_hooks",
    ),
    "hooks on every module that is made": _sizes(
        modules, "_global_buffer_registration_hooks", "_global_module_registration_hooks",
        "_global_parameter_registration_hooks",
    ),
    "hooks on every optimizer": _sizes(optimizers, "_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"),
    "modes of torch's functions": lambda: len(overrides._get_current_function_mode_stack()),
    "modes of torch's dispatcher": lambda: len(dispatch._get_current_dispatch_mode_stack()),
    "tracers": lambda: sum(each is not None for each in (sys.gettrace(), sys.getprofile())),
    "exit handlers": lambda: int(atexit._ncallbacks()),
}  # fmt: skip
IN_A_BLOCK: Mapping[str, Callable[[], int]] = {**AT_ONCE, "process groups": _groups}  # building makes them
GROWING: Mapping[str, Callable[[], int]] = {
    "threads": lambda: sum(not thread.daemon for thread in threading.enumerate()),
    "processes": _processes,
    "open files": _files,
}


class Traces:
    """What there is in this process now."""

    def __init__(self) -> None:
        self.at_once = {name: count() for name, count in IN_A_BLOCK.items()}
        self.growing = {name: count() for name, count in GROWING.items()}
        self.resident_bytes = int(psutil.Process().memory_info().rss)

    def check_build(self) -> None:
        """Raises LeftBehind for what building has added since."""
        _refuse("building it", [name for name, count in AT_ONCE.items() if count() > self.at_once[name]])


class Watch:
    """Over the blocks of one configuration."""

    def __init__(self) -> None:
        self.blocks = dict.fromkeys(GROWING, 0)  # in a row, in which there came to be more
        self.memory_blocks = 0

    def check_block(self, before: Traces) -> None:
        """Raises LeftBehind for what is left of a block that began so."""
        now = Traces()
        left = [name for name, count in now.at_once.items() if count > before.at_once[name]]
        for name, count in now.growing.items():
            self.blocks[name] = self.blocks[name] + 1 if count > before.growing[name] else 0
            left += [f"{name}, more with each block"] if self.blocks[name] >= GROWING_BLOCKS else []
        grew = now.resident_bytes - before.resident_bytes >= LEAST_BYTES
        self.memory_blocks = self.memory_blocks + 1 if grew else 0
        if self.memory_blocks >= GROWING_BLOCKS:
            left.append(f"memory, {LEAST_BYTES >> 20} MiB and more with each block")
        _refuse("a block of it", left)


def _refuse(what: str, left: list[str]) -> None:
    if left:
        raise LeftBehind(
            f"{what} leaves behind in its process: {', '.join(left)}. Others would be measured with that: "
            "`warm: false` measures it alone"
        )
