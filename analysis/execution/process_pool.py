"""Independent tasks by several processes: what takes long on thousands of trials, and one process does with one core.

    here                 forked             forked
    fills the queue
    forks                takes task 0       takes task 1
    hears      <----     says what of 0     ...
                         takes task 2       dies
    is told what of 1 is missing, and does it itself

The processes are forked, so they begin with everything that was read and derived so far (cache.py), and what they
make comes back through a pipe each. Tasks wait in a pipe that is full before the first fork, and each process takes the
next: no lock that a process could die with, and nobody waits for a process that was never made.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import RawIOBase
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

MOST_PROCESSES = 8  # each holds what it changes of what it began with
MOST_TASKS = 256  # a byte each in the queue

Made = TypeVar("Made")


def processes() -> int:
    """How many may be at work on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def done(task: Callable[[int], Made], order: Sequence[int], processes: int) -> dict[int, Made]:
    """Number -> what `task` made of it, begun in this `order` of numbers below MOST_TASKS. Raises what a task raised.

    Without those that are left to the caller: what a process died over, and all of them where there are to be no
    several processes or none can be forked.
    """
    made: dict[int, Made] = {}
    if processes < 2 or sys.platform != "linux":
        return made
    context = multiprocessing.get_context("fork")
    tasks, filled = os.pipe()
    with open(tasks, "rb", buffering=0) as queue, open(filled, "wb", buffering=0) as end:
        end.write(bytes(order))
        end.close()
        work = partial(_work, task, queue)
        working: dict[Connection, Any] = {}
        try:
            for _ in range(min(processes, len(order))):
                ours, theirs = context.Pipe(duplex=False)
                with theirs:
                    process = context.Process(target=work, args=(theirs, [*working, ours]), daemon=True)
                    try:
                        process.start()
                    except OSError:  # no room for another process: those that there are do the work
                        ours.close()
                        break
                working[ours] = process
            for number, said in _heard(list(working)):
                if isinstance(said, Exception):
                    raise said
                made[number] = said
        finally:
            for ours, process in working.items():
                ours.close()
                if process.is_alive() and len(made) < len(order):
                    process.terminate()
                process.join()
    return made


def _heard(ours: list[Connection]) -> Iterator[tuple[int, Any]]:
    """What processes say, until the last of them is done or dead."""
    while ours:
        for one in cast("list[Connection]", wait(ours)):
            try:
                yield one.recv()
            except (EOFError, OSError):
                ours.remove(one)


def _work(task: Callable[[int], Any], queue: RawIOBase, theirs: Connection, ours: Sequence[Connection]) -> None:
    """What a forked process does: one task after the other, as long as there are some and somebody listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who began it ends it
    for end in ours:  # an end that we held too would never break, and we would write to nobody for ever
        end.close()
    with contextlib.suppress(BrokenPipeError):
        while taken := queue.read(1):
            theirs.send((taken[0], _tried(task, taken[0])))


def _tried(task: Callable[[int], Any], number: int) -> Any:
    """What it made, or what it raised."""
    try:
        return task(number)
    except Exception as error:
        return error
