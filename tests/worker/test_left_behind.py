"""Everything that a workload may leave behind for good is planted and named; what is used and given back is not."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from scaling_study.worker.in_blocks import AT_ONCE, GROWING_BLOCKS, BlockWatch, LeftBehind, Traces

kept: list[object] = []  # what a leak holds on to, so that the test can take it back


def entered(mode: object) -> None:
    mode.__enter__()  # type: ignore[attr-defined]
    kept.append(lambda: mode.__exit__(None, None, None))  # type: ignore[attr-defined]


def hooked(handle: torch.utils.hooks.RemovableHandle) -> None:
    kept.append(handle.remove)


def at_exit() -> None:
    atexit.register(nothing)
    kept.append(lambda: atexit.unregister(nothing))


def nothing(*_: object) -> None:
    return None


def traced() -> None:
    before = sys.getprofile()
    sys.setprofile(nothing)
    kept.append(lambda: sys.setprofile(before))


def grouped() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    kept.append(dist.destroy_process_group)


LEAKS: dict[str, list[Callable[[], None]]] = {
    "hooks on every module": [
        lambda: hooked(nn.modules.module.register_module_forward_pre_hook(nothing)),
        lambda: hooked(nn.modules.module.register_module_forward_hook(nothing)),
        lambda: hooked(nn.modules.module.register_module_full_backward_hook(nothing)),
    ],
    "hooks on every module that is made": [
        lambda: hooked(nn.modules.module.register_module_parameter_registration_hook(nothing)),
        lambda: hooked(nn.modules.module.register_module_module_registration_hook(nothing)),
    ],
    "hooks on every optimizer": [
        lambda: hooked(register_optimizer_step_pre_hook(nothing)),
        lambda: hooked(register_optimizer_step_post_hook(nothing)),
    ],
    "modes of torch's functions": [lambda: entered(TorchFunctionMode())],
    "modes of torch's dispatcher": [lambda: entered(TorchDispatchMode())],
    "tracers": [traced],
    "exit handlers": [at_exit],
    "process groups": [grouped],
}  # fmt: skip


def a_file() -> None:
    file = open(os.devnull)  # noqa: SIM115
    kept.append(file.close)


def a_thread() -> None:
    end = threading.Event()
    threading.Thread(target=end.wait).start()
    kept.append(end.set)


def a_process() -> None:
    process = subprocess.Popen(["sleep", "60"])
    kept.append(lambda: (process.kill(), process.wait()))


GROWING = {"open files": a_file, "threads": a_thread, "processes": a_process}


@pytest.fixture(autouse=True)
def _taken_back() -> Iterator[None]:
    yield
    for undo in reversed(kept):
        undo()  # type: ignore[operator]
    kept.clear()


@pytest.mark.parametrize(("name", "leak"), [(name, leak) for name, leaks in LEAKS.items() for leak in leaks])
def test_what_a_block_leaves_is_named_at_once(name: str, leak: Callable[[], None]) -> None:
    watch, before = BlockWatch(), Traces()
    leak()
    with pytest.raises(
        LeftBehind, match=rf"^a block of it leaves behind in its process: {name}\. .*`interleave: false`"
    ):
        watch.check_block(before)


@pytest.mark.parametrize("name", list(AT_ONCE))
def test_what_building_leaves_is_named(name: str) -> None:
    before = Traces()
    LEAKS[name][0]()
    with pytest.raises(LeftBehind, match=f"^building it leaves behind in its process: {name}"):
        before.check_build()


def test_building_may_import_what_ends_with_the_process_and_make_process_groups() -> None:
    before = Traces()
    at_exit()
    grouped()
    before.check_build()


def test_pages_of_a_file_are_no_leak(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(64 << 20))
    data, watch = np.memmap(tmp_path / "data", mode="r"), BlockWatch()
    for block in range(2 * GROWING_BLOCKS):
        before = Traces()
        data[block * (6 << 20) : (block + 1) * (6 << 20)].sum()
        watch.check_block(before)


@pytest.mark.parametrize("name", GROWING)
def test_what_grows_with_each_block_is_named(name: str) -> None:
    watch = BlockWatch()
    for _ in range(GROWING_BLOCKS - 1):
        before = Traces()
        GROWING[name]()
        watch.check_block(before)
    before = Traces()
    GROWING[name]()
    with pytest.raises(LeftBehind, match=f"{name}, more with each block"):
        watch.check_block(before)


def test_memory_that_grows_is_named_and_memory_that_is_returned_is_not() -> None:
    gc.collect()  # what other tests left in cycles would be returned in the midst of it
    ctypes.CDLL(None).malloc_trim(0)  # and what they freed be taken again: of memory that is kept nothing grows
    watch, held = BlockWatch(), list[torch.Tensor]()
    for _ in range(10):
        before = Traces()
        torch.ones(16 << 20, dtype=torch.uint8)
        watch.check_block(before)
    watch = BlockWatch()  # the blocks before may have grown by a page each, and would count
    with pytest.raises(LeftBehind, match=r"memory, \d+ MiB in \d+ blocks"):
        for _ in range(2 * GROWING_BLOCKS):
            before = Traces()
            held.append(torch.ones(64 << 20, dtype=torch.uint8))
            watch.check_block(before)
    assert len(held) >= GROWING_BLOCKS
