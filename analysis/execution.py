"""Files written whole or not at all, parts that may fail alone, several processes for thousands of trials."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pandas as pd

from scaling_study.errors import printable, shortened
from scaling_study.records import store


def write_csv(path: Path, frame: pd.DataFrame) -> Path:
    return store.replaced(path, lambda beside: frame.to_csv(beside, index=False), durable=False)


def write_text(path: Path, text: str) -> Path:
    return store.replaced(path, lambda beside: beside.write_text(text, encoding="utf-8"), durable=False)


# Parts that are made one by one: what one of them cannot do costs nobody the others.
#
# A table that meets what nobody foresaw fails alone. It is named, with the reason, in its place on the page, at the
# page's top, and in what the command says when it ends.

MOST_LETTERS = 300  # of a reason
T = TypeVar("T")


class LostPart(UserWarning):
    """A part that could not be made, named, with the reason."""


@dataclass(eq=False)
class Salvage:
    """`lost`: a sentence for each part that could not be made. `strict`: nothing is salvaged, errors are raised."""

    lost: list[str] = field(default_factory=list)
    strict: bool = False

    def made(self, what: str, make: Callable[[], T], instead: T) -> T:
        """What `make` returns; `instead`, where it raises anything but what means that nothing more can be done."""
        return self.or_else(what, make, lambda why: instead)

    def or_else(self, what: str, make: Callable[[], T], instead: Callable[[str], T]) -> T:
        """The same; `instead` is told the reason."""
        try:
            return make()
        except (OSError, MemoryError):  # a full disk: nor would the next part be written
            raise
        except Exception as error:
            if self.strict:
                raise
            why = reason(error)
            message = f"{what} could not be made: {why}"
            if message not in self.lost:
                self.lost.append(message)
            return instead(why)


NOTHING = Salvage(strict=True)


def reason(error: Exception) -> str:
    """`KeyError: 'workers'`, on one line; where in the code, for who mends it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        code = trace.tb_frame.f_code
        place = f" ({code.co_filename.rsplit('/', 1)[-1]}, line {trace.tb_lineno})"
    text = " ".join(printable(str(error)).split())
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__, MOST_LETTERS) + place


# Work that makes many objects which stay, or which all go at once: looking for garbage among them meanwhile would
# take as long as the work.


@contextmanager
def ignored() -> Iterator[None]:
    """No collection inside; one is due where what was made refers to itself, as a drawn figure does."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def only_new() -> Iterator[None]:
    """Collections inside look at nothing that was there before: thousands of trials take a while to look through."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# Independent tasks by several processes, for what takes one process long on thousands of trials.
#
# The processes are forked: they begin with everything that was read and derived so far, and only results are pickled.

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
