"""Which processes belong to a sweep, whatever they have become: by a mark in their environment, or by its folder.

Parents, sessions and process groups are what launchers change; what a process was started with stays readable in
/proc. A process that closed everything and forked twice is still found.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

MARK = "FAULTS_SWEEP"
RANKS = {"RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"}


def of_sweep(mark: str, folder: Path) -> list[psutil.Process]:
    """All that carry the mark, name the folder in their command line, or stand in it; no zombies."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and _belongs(process, mark, str(folder)):
                found.append(process)
    return found


def _belongs(process: psutil.Process, mark: str, folder: str) -> bool:
    environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    if f"{MARK}={mark}".encode() not in environment:
        command = " ".join(process.cmdline())
        return folder in command and "pytest" not in command
    return bool(process.status() != psutil.STATUS_ZOMBIE)


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill these at once: all are stopped first, or one would have time to end another."""
    found = list(processes)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def described(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:160]}"
    return str(process.pid)


# --- who is who


def words(process: psutil.Process) -> str:
    """Its command line; empty where it is gone."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def supervisors(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The process that watches over the trials of a sweep."""
    return [p for p in processes if "supervisor.main()" in words(p)]


def launchers(processes: list[psutil.Process], trial: str) -> list[psutil.Process]:
    """What the supervisor started for this trial."""
    found = []
    for supervisor in supervisors(processes):
        with contextlib.suppress(psutil.Error):
            found += [p for p in supervisor.children() if trial in words(p)]
    return found


def ranks(processes: list[psutil.Process], trial: str) -> list[psutil.Process]:
    """Processes that run the trial's script under a launcher's number."""
    found = []
    for process in (p for p in processes if trial in words(p) and "python" in words(p).split(" ")[0]):
        with contextlib.suppress(psutil.Error):
            found += [process] if RANKS & process.environ().keys() else []
    return found


def session(leader: int) -> Iterator[psutil.Process]:
    """Every process of the session that this one leads."""
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getsid(process.pid) == leader:
                yield process
