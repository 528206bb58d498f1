"""Ports that are really taken, and memory of GPUs as a planted NVML shows it: what an ended trial still holds."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from planted_gpus import Gpu, plant

from scaling_study.processes import leftovers
from scaling_study.processes.leftovers import GpuMemory
from scaling_study.processes.process import Ending

AMONG = range(21_000, 21_040)
GIB = 1 << 30


@pytest.fixture
def stop() -> Iterator[Ending]:
    """Nobody asks the sweep to end, until `end`."""
    ending = Ending()
    yield ending
    ending.close()


@pytest.fixture(params=[("0.0.0.0", socket.AF_INET), ("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def taken(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    address, family = request.param
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, next(port for port in AMONG if leftovers.is_free(port))))
        server.listen()
        yield server


def test_a_port_that_anybody_listens_on_is_not_free(taken: socket.socket, stop: Ending) -> None:
    port = taken.getsockname()[1]
    assert not leftovers.is_free(port)
    taken.close()
    assert leftovers.is_free(port) and leftovers.choose_port(port, AMONG, stop) == (port, "")


def test_a_port_that_stays_taken_is_left_to_its_holder_who_is_named(
    taken: socket.socket, stop: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "WAIT_SECONDS", 0.5)
    held = taken.getsockname()[1]
    port, why = leftovers.choose_port(held, AMONG, stop)
    assert port != held and port in AMONG and leftovers.is_free(port)
    assert why.startswith(f"port {held} is in use by process {os.getpid()} (") and f"; {port} was" in why


@pytest.mark.slow
def test_a_port_that_is_given_back_meanwhile_is_taken(taken: socket.socket, stop: Ending) -> None:
    held = taken.getsockname()[1]
    threading.Timer(0.6, taken.close).start()
    assert leftovers.choose_port(held, AMONG, stop) == (held, "")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """used(1 * GIB, 0): that much is in use on each GPU; a list is what it will be at each look, the last for ever."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(leftovers, "GPU_POLL_SECONDS", 0.01)
    monkeypatch.setattr(leftovers, "GPU_WAIT_SECONDS", 0.2)

    def planted(*bytes: int | list[int]) -> None:
        looks = [size if isinstance(size, list) else [size] for size in bytes]
        gpus = [Gpu("T4", looks=each, pids=[123]) for each in looks]
        plant(monkeypatch, gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))

    return planted


HELD = "3.0 GiB of T4 were still in use before it began, by process 123"


@pytest.mark.parametrize(
    ("before", "after", "visible", "held"),
    [
        ((10 * GIB, 0), (10 * GIB + (100 << 20), 0), "0,1", []),  # others', and too little for a process of ours
        ((GIB, 0), ([8 * GIB, 8 * GIB, 4 * GIB, GIB], 0), "0,1", []),  # it comes back late
        ((0, 0), (0, 3 * GIB), "0,1", [HELD]),
        ((0, 0), (0, 3 * GIB), "0", []),  # of a GPU that no trial sees
    ],
)
def test_memory_that_a_trial_left_in_use_is_waited_for_and_named(
    used: Callable[..., None],
    stop: Ending,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[int, ...],
    after: tuple[int | list[int], ...],
    visible: str,
    held: list[str],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    memory = GpuMemory()
    used(*before)
    assert memory.wait_until_freed(stop) == []
    used(*after)
    assert memory.wait_until_freed(stop) == held


def test_a_sweep_that_is_to_end_waits_for_neither(
    taken: socket.socket, used: Callable[..., None], stop: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "WAIT_SECONDS", 600.0)
    monkeypatch.setattr(leftovers, "GPU_WAIT_SECONDS", 600.0)
    used(0)
    memory = GpuMemory()
    memory.wait_until_freed(stop)
    used(3 * GIB)
    stop.end()
    start = time.monotonic()
    leftovers.choose_port(taken.getsockname()[1], AMONG, stop)
    memory.wait_until_freed(stop)
    assert time.monotonic() - start < 60
