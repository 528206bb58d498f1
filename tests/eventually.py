"""Waits, with a deadline, for what processes become: a loaded machine delivers signals late, and ends processes late.

A test asserts at once only what must be true already. It waits for all else; a deadline costs time only where it fails.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import psutil

LATEST_SECONDS = 120.0
P = TypeVar("P", psutil.Process, int)


def until(
    condition: Callable[[], object], seconds: float = LATEST_SECONDS, otherwise: Callable[[], object] = str
) -> float:
    """Seconds until it held; an AssertionError, with the words of `otherwise`, if it does not hold in time."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s: {otherwise()}"
        time.sleep(0.05)
    return time.monotonic() - start


def living(process: psutil.Process | int) -> bool:
    """False for a zombie: it holds nothing but its number, and who must collect it may be slow."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(process) if isinstance(process, int) else process
        return bool(found.is_running() and found.status() != psutil.STATUS_ZOMBIE)
    return False


def gone(processes: Iterable[P], seconds: float = LATEST_SECONDS) -> list[P]:
    """Wait so long for these to end; those that have not."""
    deadline, found = time.monotonic() + seconds, list(processes)
    while (alive := [process for process in found if living(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def stopped(pid: int) -> bool:
    """True once every thread of a process is stopped: the first may be so before the others."""
    with contextlib.suppress(OSError):
        states = [path.read_text().rpartition(") ")[2][:1] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return set(states) == {"T"}
    return False
