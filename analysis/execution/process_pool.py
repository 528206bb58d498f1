"""Independent tasks by several processes, for what takes one process long on thousands of trials.

The processes are forked: they begin with everything that was read and derived so far, and only results are pickled.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

MOST_PROCESSES = 8  # each holds a copy of what it changes

Result = TypeVar("Result")
_task: Callable[[int], Any]  # of the pool that forked this process: not pickled, so that it may be a closure


def available_processes() -> int:
    """How many may be at work on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def run_tasks(task: Callable[[int], Result], order: Sequence[int], processes: int) -> dict[int, Result]:
    """Number -> `task(number)`, begun in this order. Raises what a task raised, and ends the others then.

    Tasks are left out, for the caller to do, where a process died or none can be forked; with fewer than two
    `processes` and off Linux all are.
    """
    results: dict[int, Result] = {}
    if processes < 2 or not order or sys.platform != "linux":
        return results
    before = set(active_children())
    pool = ProcessPoolExecutor(min(processes, len(order)), get_context("fork"), _start, (task,))
    try:
        futures = _submitted(pool, order)
        for future in as_completed(futures):
            results[futures[future]] = future.result()
    except BrokenProcessPool:  # a process was killed, most often for memory: the rest needs it one task at a time
        pass
    finally:
        if len(results) < len(order):
            for process in set(active_children()) - before:
                process.terminate()
        pool.shutdown()
    return results


def _submitted(pool: ProcessPoolExecutor, order: Sequence[int]) -> dict[Future[Any], int]:
    """Task -> its number; none where there is no room for the processes."""
    try:
        return {pool.submit(_run, number): number for number in order}
    except OSError:
        return {}


def _start(task: Callable[[int], Any]) -> None:
    global _task
    _task = task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its processes
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent says nothing: its processes would wait for another task for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(number: int) -> Any:
    return _task(number)
