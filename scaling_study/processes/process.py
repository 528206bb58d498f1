"""The one place where the processes of a trial are started, watched and ended, and their output kept.

    supervisor (child subreaper) --- launcher --- shell --- mpirun --- rank 0
                                                              \\---- rank 1   each in a session of its own

Launchers put their ranks into sessions of their own, so killing a process group misses them. Whoever calls `run` is
made the subreaper of everything below it (Linux): a process whose parent dies becomes its child, so whatever a trial
left behind can be found, and is ended before the next trial starts. In a sweep that is the supervisor (supervisor.py),
which outlives the driver by the few seconds that this takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import psutil

from scaling_study.control_groups import memory_kills

FIRST_BYTES = LAST_BYTES = 4 * 2**20
PIECE_BYTES = 2**16  # what a pipe holds


class CappedLog:
    """A log that cannot fill the disk: the first and the last of what a trial printed, and how much lies between.

        processes --pipe--> a thread here --> | first 4 MiB, as it comes | "... 3.2 GB left out ..." | last 4 MiB |

    The error that ends a trial is logged last, its setup first. The pipe is always read, also when nothing more can be
    written: a process that waits for its log would be a process that hangs. Open while a command runs; hand it to Popen
    as stdout and stderr. Appends to what the file already holds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> CappedLog:
        self._file: IO[bytes] = self.path.open("ab", buffering=0)
        self._read, self._write = os.pipe()
        self._last, self._left_out = bytearray(), 0
        self._thread = threading.Thread(target=self._pump, name="log", daemon=True)
        self._thread.start()
        return self

    def fileno(self) -> int:
        """The end to write to."""
        return self._write

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        self._thread.join(timeout=1.0)  # at once, unless a process outside the trial holds the other end
        self._forget_all_but_the_last()
        with contextlib.suppress(OSError):
            if self._left_out:
                self._file.write(f"\n... {self._left_out:,} bytes left out here ...\n".encode())
            self._file.write(self._last)
        self._file.close()

    def _pump(self) -> None:
        room = max(0, FIRST_BYTES - self._file.tell())
        with open(self._read, "rb", buffering=0) as pipe:
            while piece := pipe.read(PIECE_BYTES):
                first, written = piece[:room], 0
                with contextlib.suppress(OSError, ValueError):  # on a full disk, or a file closed meanwhile
                    written = self._file.write(first)
                room = room - written if written == len(first) else 0
                self._last += piece[written:]
                if len(self._last) > 2 * LAST_BYTES:  # not for each piece: what is kept is moved
                    self._forget_all_but_the_last()

    def _forget_all_but_the_last(self) -> None:
        self._left_out += max(0, len(self._last) - LAST_BYTES)
        del self._last[:-LAST_BYTES]


PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 3.0  # between asking a process to end and ending it
LOOK_SECONDS = 0.5  # between two looks for a file that says that a command is to be ended


@dataclass(frozen=True)
class Exit:
    """The end of a command."""

    code: int | None  # the launcher's exit code, negative for a signal; None: it never started
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    killed_for_memory: bool = False  # the kernel killed some process for memory meanwhile
    error: str = ""  # why it never started
    lost: str = ""  # how the supervisor ended, if that ended first
    node: str = ""  # the host that failed meanwhile, and how
    left_behind: int = 0  # processes that were still alive when it had ended by itself, and were ended
    lost_sight: bool = False  # it was ended since its processes said that they cannot be observed any more


class Stop(Protocol):
    """Ends a trial before its time: readable at a signal to the driver, or at its death."""

    def fileno(self) -> int: ...  # readable once the trial is to be ended


class Ending:
    """A stop for whoever holds it: readable once it was asked for, by a signal's name."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None  # that asks for it, once there is one
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ask for it; another signal later changes nothing of what is readable."""
        if self.signal is None:
            os.write(self._write, b"x")
        self.signal = signal.Signals(number)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Interruption(Ending):
    """Ctrl-C, TERM and HUP: while this is open they raise nothing, and can be waited for.

    The running trial is ended, what is finished is kept.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> Interruption:
        handled = [s for s in self.SIGNALS if signal.getsignal(s) != signal.SIG_IGN]  # nohup keeps its effect
        self._before = {s: signal.signal(s, self._note) for s in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.close()

    def _note(self, number: int, _: object) -> None:
        self.end(number)
        if number == signal.SIGHUP:
            detach_from_terminal()


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    timeout_seconds: float,
    stop: Stop,
    progress: Path | str | None = None,
    unseen: Path | str | None = None,
) -> Exit:
    """Run a command to its end, its output in `log`; on return nothing that it started is alive.

    `progress`: a file that it replaces as it gets on; `timeout_seconds` then count from the last time. `unseen`: a
    file that it makes where its processes cannot be observed any more; it is ended then, or once its folder is gone.
    """
    adopt_orphans()
    not_ours = {process.pid for process in psutil.Process().children(recursive=True)}
    kills_before = memory_kills()
    start = time.monotonic()
    with CappedLog(log) as output:
        try:
            child = subprocess.Popen(
                argv,
                env={**os.environ, **env},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output.fileno(),
                stderr=output.fileno(),
            )
        except OSError as error:
            return Exit(None, 0.0, error=f"{argv[0]}: {error.strerror}")
        ended = os.pidfd_open(child.pid)  # waited for without polling
        try:
            ready = wait_while_alive([ended, stop.fileno()], timeout_seconds, progress, unseen)
        finally:
            os.close(ended)
        lost_sight = not ready and _is_lost(unseen)
        if ended in ready:
            child.wait()
        seconds = time.monotonic() - start
        left = end_descendants(child, not_ours)
    return Exit(
        child.wait(),
        seconds,
        timed_out=not ready and not lost_sight,
        interrupted=ended not in ready and bool(ready),
        killed_for_memory=memory_kills() > kills_before,
        left_behind=left if ended in ready else 0,
        lost_sight=lost_sight,
    )


def wait_while_alive(
    handles: Sequence[int], timeout_seconds: float, progress: Path | str | None, unseen: Path | str | None = None
) -> list[int]:
    """The handles that are readable, or none: after so many seconds without new `progress`, or with `unseen` there."""
    deadline, seen = time.monotonic() + timeout_seconds, 0
    while True:
        left = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(handles, [], [], min(left, LOOK_SECONDS) if unseen else left)
        if ready or _is_lost(unseen):
            return ready
        if time.monotonic() < deadline:
            continue
        last = 0
        with contextlib.suppress(OSError):
            last = os.stat(progress).st_mtime_ns if progress else 0
        if last == seen:
            return []
        seen = last
        deadline = time.monotonic() + min(timeout_seconds, max(0.1, timeout_seconds - (time.time() - last / 1e9)))


def _is_lost(unseen: Path | str | None) -> bool:
    """True once that file is there for a moment, in which a command may end by itself; or where its folder is gone."""
    if unseen is None:
        return False
    try:
        return time.time() - os.stat(unseen).st_mtime > LOOK_SECONDS
    except OSError:
        return not os.path.isdir(os.path.dirname(unseen))


def detach_from_terminal() -> None:
    """Replace a closed terminal by /dev/null: each write to it would fail, the last of them at exit."""
    null = os.open(os.devnull, os.O_RDWR)
    null_device = os.fstat(null).st_rdev
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(stream)
            if stat.S_ISCHR(status.st_mode) and status.st_rdev != null_device:  # isatty is false of a closed one
                os.dup2(null, stream)
    os.close(null)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies. Linux only; elsewhere it changes nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_trees(pids: Iterable[int], number: int, more_likely: int) -> None:
    """Send a signal to these processes and to all below them; `more_likely` (0 to 1000): to be ended than this one,
    where the host is out of memory. Those that are gone, or another user's (sudo), are left out."""
    own = int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))
    for each in trees(pid for pid in pids if pid > 0):  # to `kill`, any other is a group of processes
        with contextlib.suppress(OSError):
            Path(f"/proc/{each}/oom_score_adj").write_text(f"{min(1000, own + more_likely)}", "ascii")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, number)


def trees(pids: Iterable[int]) -> list[int]:
    """These processes and all below them, by one look at the process table."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b") ")[2].split()  # state, parent, ...
            children.setdefault(int(fields[1]), []).append(int(name))
    found = list(pids)
    for pid in found:  # which grows meanwhile
        found += children.pop(pid, ())
    return found


def end_descendants(child: subprocess.Popen[bytes] | None = None, not_ours: Set[int] = frozenset()) -> int:
    """End every process that descends from `child`: TERM, a moment to obey, then KILL until none is left.

    All descendants of this process but `not_ours` count as such: of an orphan it is no longer known. The code of
    `child` itself is left to whoever started it. Returns how many it ended.
    """
    seen, signal_one = set[int](), psutil.Process.terminate
    while True:
        alive, collected = _descendants(child, not_ours)
        seen |= {process.pid for process in alive}
        if not (alive or collected):  # of one that was collected a child may be here by now
            return len(seen)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                signal_one(process)
                process.resume()  # a stopped process sees the TERM only once it continues
        _wait_until_ended(alive, GRACE_SECONDS)
        signal_one = psutil.Process.kill if alive else signal_one


def _descendants(child: subprocess.Popen[bytes] | None, not_ours: Set[int]) -> tuple[list[psutil.Process], list[int]]:
    """(those alive, the pids of adopted zombies that were collected on the way, so that a long sweep does not fill the
    process table)."""
    alive, collected = list[psutil.Process](), list[int]()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.pid in not_ours:
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
            elif process.ppid() == os.getpid() and not (child and process.pid == child.pid):  # whose code is Popen's
                collected.append(os.waitpid(process.pid, os.WNOHANG)[0])  # 0: threads of it live on
    return alive, list(filter(None, collected))


def _wait_until_ended(processes: Sequence[psutil.Process], seconds: float) -> None:
    """Wait at most `seconds`. Not by psutil.wait_procs, which would take a child's exit code from Popen."""

    def alive(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(process.status() != psutil.STATUS_ZOMBIE)
        return False

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(alive, processes)):
        time.sleep(0.02)
