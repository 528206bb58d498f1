"""What a configuration leaves in its process that nobody can take back: its launch then ends.              [torch]

    at once      hooks that every model or optimiser runs, modes of torch, tracers; of a block also exit handlers and
                 process groups, which building may make
    block by     threads, processes and open files that are more after each of several blocks in a row; memory
    block        that has grown by a quarter of a gigabyte

What can be put back is (global_state.py). What cannot would be run, held or paid for by all that share the process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import overrides
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils import _python_dispatch as dispatch
from torch.utils._device import DeviceContext

GROWING_BLOCKS = 5  # in a row, after which what grew in each is taken for a leak: pools of threads fill by and by
LEAK_BYTES = 256 << 20  # by which memory has grown over these blocks; a C library keeps half as much of what was freed


class LeftBehind(RuntimeError):
    """A configuration cannot be measured beside others. It says what it left."""


def _sizes(owner: Any, *names: str) -> Callable[[], int]:
    return lambda: sum(len(getattr(owner, name, ())) for name in names)


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _processes() -> int:
    count = 0
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has ended meanwhile
            count += len(children.read_text().split())
    return count


def _memory_bytes() -> int:
    """Resident, of this process alone: pages of files that it reads for the first time are no leak."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split(maxsplit=1)[0])


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
    "modes of torch's functions": lambda: sum(
        not isinstance(mode, DeviceContext) for mode in overrides._get_current_function_mode_stack()
    ),  # of a default device, which is put back
    "modes of torch's dispatcher": lambda: len(dispatch._get_current_dispatch_mode_stack()),
    "tracers": lambda: sum(each is not None for each in (sys.gettrace(), sys.getprofile())),
}  # fmt: skip
IN_A_BLOCK: Mapping[str, Callable[[], int]] = {  # building, which imports much, may make these
    **AT_ONCE, "exit handlers": lambda: int(atexit._ncallbacks()), "process groups": _groups,
}  # fmt: skip
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
        self.memory_bytes = _memory_bytes()

    def check_build(self) -> None:
        """Raises LeftBehind for what building has added since."""
        _refuse("building it", [name for name, count in AT_ONCE.items() if count() > self.at_once[name]])


class Watch:
    """Over the blocks of one configuration."""

    def __init__(self) -> None:
        self.blocks = dict.fromkeys(GROWING, 0)  # in a row, in which there came to be more
        self.grown: list[int] = []  # bytes, of blocks in a row in which memory grew

    def check_block(self, before: Traces) -> None:
        """Raises LeftBehind for what is left of a block that began so."""
        now = Traces()
        left = [name for name, count in now.at_once.items() if count > before.at_once[name]]
        for name, count in now.growing.items():
            self.blocks[name] = self.blocks[name] + 1 if count > before.growing[name] else 0
            left += [f"{name}, more with each block"] if self.blocks[name] >= GROWING_BLOCKS else []
        grown = now.memory_bytes - before.memory_bytes
        self.grown = [*self.grown, grown] if grown > 0 else []
        if len(self.grown) >= GROWING_BLOCKS and sum(self.grown) >= LEAK_BYTES:
            left.append(f"memory, {sum(self.grown) >> 20} MiB in {len(self.grown)} blocks")
        _refuse("a block of it", left)


def _refuse(what: str, left: list[str]) -> None:
    if left:
        raise LeftBehind(
            f"{what} leaves behind in its process: {', '.join(left)}. Others would be measured with that: "
            "`warm: false` measures it alone"
        )
