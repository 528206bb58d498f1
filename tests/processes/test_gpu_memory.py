"""Memory of GPUs that ended trials still hold, as a planted NVML shows it: no GPU was there to try it on."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from scaling_study.processes import leftovers
from scaling_study.processes.leftovers import GpuMemory

GIB = 1 << 30


class Stop:
    """Nobody asks the sweep to end, until `ask`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    def ask(self) -> None:
        os.write(self._write, b"x")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """used(1 * GIB, 0): that much is in use on each GPU; a list is what it will be at each look, the last for ever."""
    in_use: list[list[int]] = []

    def look(handle: int) -> SimpleNamespace:
        now = in_use[handle]
        return SimpleNamespace(used=now.pop(0) if len(now) > 1 else now[0])

    nvml = SimpleNamespace(
        NVMLError=OSError, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: len(in_use),
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetHandleByUUID=lambda uuid: int(uuid[-1]),
        nvmlDeviceGetName=lambda handle: "T4", nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetMemoryInfo=look,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=123)],
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(leftovers, "GPU_POLL_SECONDS", 0.01)
    monkeypatch.setattr(leftovers, "GPU_WAIT_SECONDS", 0.2)

    def plant(*bytes: int | list[int]) -> None:
        in_use[:] = [size if isinstance(size, list) else [size] for size in bytes]

    return plant


def test_what_was_there_before_the_first_trial_is_others(used: Callable[..., None]) -> None:
    used(10 * GIB, 0)
    memory = GpuMemory()
    assert memory.wait_until_freed(Stop()) == []
    used(10 * GIB + (100 << 20), 0)
    assert memory.wait_until_freed(Stop()) == [], "too little for a process of ours"


def test_what_comes_back_late_is_waited_for(used: Callable[..., None]) -> None:
    used(GIB)
    memory = GpuMemory()
    memory.wait_until_freed(Stop())
    used([8 * GIB, 8 * GIB, 4 * GIB, GIB])
    assert memory.wait_until_freed(Stop()) == []


def test_what_does_not_come_back_is_named_with_its_holder(used: Callable[..., None]) -> None:
    used(0, 0)
    memory = GpuMemory()
    memory.wait_until_freed(Stop())
    used(0, 3 * GIB)
    assert memory.wait_until_freed(Stop()) == ["3.0 GiB of T4 were still in use before it began, by process 123"]


def test_only_gpus_that_trials_see_are_waited_for(used: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    used(0, 0)
    memory = GpuMemory()
    memory.wait_until_freed(Stop())
    used(0, 3 * GIB)
    assert memory.wait_until_freed(Stop()) == []


def test_who_asks_the_sweep_to_end_does_not_wait(used: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GPU_WAIT_SECONDS", 600.0)
    used(0)
    memory, stop = GpuMemory(), Stop()
    memory.wait_until_freed(stop)
    used(3 * GIB)
    stop.ask()
    start = time.monotonic()
    memory.wait_until_freed(stop)
    assert time.monotonic() - start < 60
