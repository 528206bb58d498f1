"""The one place where processes are started, watched and ended.

    driver (child subreaper) --- launcher --- shell --- mpirun --- rank 0
                                                            \\---- rank 1   each in a session of its own

Launchers put their ranks into sessions of their own, so killing a process group misses them. The driver is
made the subreaper of everything below it (Linux): a process whose parent dies becomes the driver's child, so
whatever a trial left behind can be found, and is ended before the next trial starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 3.0  # between asking a process to end and ending it


@dataclass(frozen=True)
class Exit:
    """How a command ended."""

    code: int | None  # the launcher's exit code, negative for a signal; None: it never started
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    killed_for_memory: bool = False  # the kernel killed some process for memory meanwhile
    error: str = ""  # why it never started


class Interruption:
    """Ctrl-C, TERM and HUP, turned from a traceback into a fact that can be waited for.

    The running trial is ended, what is finished is kept; another signal meanwhile changes nothing.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._read, self._write = os.pipe()

    def __enter__(self) -> Interruption:
        self._before = {s: signal.signal(s, self._note) for s in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, _: object) -> None:
        if self.signal is None:
            os.write(self._write, b"x")
        self.signal = signal.Signals(number)

    def fileno(self) -> int:
        """Readable once a signal has come."""
        return self._read


def run(
    argv: Sequence[str], env: Mapping[str, str], log: Path, timeout_seconds: float, interruption: Interruption
) -> Exit:
    """Run a command to its end, its output in `log`; on return nothing that it started is alive."""
    adopt_orphans()
    not_ours = {process.pid for process in psutil.Process().children(recursive=True)}
    kills_before = _memory_kills()
    start = time.monotonic()
    with log.open("ab") as output:
        try:
            child = subprocess.Popen(
                argv, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Exit(None, 0.0, error=f"{argv[0]}: {error.strerror}")
    ended = _wait(child.pid, timeout_seconds, interruption)
    if ended:
        child.wait()
    seconds = time.monotonic() - start
    end_descendants(child, not_ours)
    code = child.wait()
    return Exit(
        code, seconds,
        timed_out=not ended and interruption.signal is None,
        interrupted=interruption.signal is not None,
        killed_for_memory=_memory_kills() > kills_before,
    )  # fmt: skip


def _wait(pid: int, timeout_seconds: float, interruption: Interruption) -> bool:
    """True once the process has ended; False on time-out or interruption. Wakes at once, without polling."""
    handle = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([handle, interruption.fileno()], [], [], timeout_seconds)
        return handle in ready
    finally:
        os.close(handle)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies. Linux only; elsewhere it changes nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(child: subprocess.Popen[bytes], not_ours: Set[int] = frozenset()) -> None:
    """End every process that descends from `child`: TERM, a moment to obey, then KILL until none is left.

    All descendants of this process but `not_ours` count as such: an orphan's line of descent is lost.
    """
    found = _descendants(child, not_ours)
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            process.resume()  # a stopped process sees the TERM only once it goes on
    if found:
        _gone(found, GRACE_SECONDS)
    while found := _descendants(child, not_ours):  # a process may have forked while we looked
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _gone(found, GRACE_SECONDS)


def _descendants(child: subprocess.Popen[bytes], not_ours: Set[int]) -> list[psutil.Process]:
    """Those alive; adopted zombies are collected on the way, so that a long sweep does not fill the process table."""
    alive = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.pid in not_ours:
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
            elif process.ppid() == os.getpid() and process.pid != child.pid:  # the child's code is Popen's to collect
                os.waitpid(process.pid, os.WNOHANG)
    return alive


def _gone(processes: Sequence[psutil.Process], seconds: float) -> None:
    """Wait until all have ended, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(_alive(p) for p in processes):
        time.sleep(0.02)


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _memory_kills() -> int:
    """How often this kernel has killed a process for memory, or 0 where it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


@contextlib.contextmanager
def listening() -> Iterator[Interruption]:
    """An Interruption for the time of a sweep."""
    with Interruption() as interruption:
        yield interruption
