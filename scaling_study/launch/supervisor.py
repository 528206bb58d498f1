"""Trials outlive their driver by seconds: a process of its own watches over them.

    driver ---- socket pair ---- supervisor ---- launcher ---- ranks       the supervisor: a session of its own,
       |                             |                                   the parent of whatever is orphaned below it
       |   "run this"  ----------->  |  process.run
       |   <-----------  "it ended"  |
       |   "stop"      ----------->  |  ends the trial
       X   (killed)    --- EOF --->  |  ends the trial, and itself

A driver that is killed with -9 can end nothing, and its children's children live on. The supervisor learns of it from
the kernel: the other end of its socket is closed, whatever the driver died of. If the supervisor itself is killed, its
processes become the driver's, which ends them. If both are, the next driver finds them by their mark (leftovers.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from signal import Signals

import psutil

from scaling_study.hosts.connection import Lost
from scaling_study.hosts.connections import Lines
from scaling_study.processes import leftovers, process
from scaling_study.processes.process import Exit, Interruption
from scaling_study.settings import CHECKOUT

STOP = b"stop"
PATIENCE_SECONDS = 30.0  # beyond a trial's time-out, until a supervisor that does not answer counts as lost
ENTRY = (
    f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from scaling_study.launch import supervisor; supervisor.main()"
)


# --- the driver's side


class Watch:
    """Runs commands for a sweep through a supervisor, which is started when first needed and again when lost."""

    def __init__(self, results: Path, interruption: Interruption) -> None:
        self.results, self._interruption = results, interruption
        self._supervisor: _Supervisor | None = None

    def __enter__(self) -> Watch:
        process.adopt_orphans()  # the supervisor's, should it be killed
        self._not_ours = {child.pid for child in psutil.Process().children(recursive=True)}
        self.ended = leftovers.clean(self.results)  # in words: what an earlier sweep had left running
        return self

    def __exit__(self, *_: object) -> None:
        if self._supervisor:
            self._supervisor.dismiss()

    @property
    def signal(self) -> Signals | None:
        """The signal that asks the sweep to end, once there is one."""
        return self._interruption.signal

    def fileno(self) -> int:
        """Readable once the sweep is to end."""
        return self._interruption.fileno()

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, timeout_seconds: float, hosts: Sequence[str] = ()
    ) -> Exit:
        """Run a command to its end as `process.run` does, in a process that outlives this one.

        `hosts`: others, on which it starts processes too; none of those outlives it either.
        """
        temporary = leftovers.temporary_folder(self.results)
        marked = {**env, **leftovers.environment(self.results, temporary)}
        request = _Request(list(argv), marked, str(log.resolve()), timeout_seconds, str(temporary), list(hosts))
        start = time.monotonic()
        self._supervisor = self._supervisor or _Supervisor(self.results)
        try:
            return self._supervisor.ask(request, self)
        except _Lost as lost:
            self._supervisor = None
            process.end_descendants(not_ours=self._not_ours)
            shutil.rmtree(temporary, ignore_errors=True)
            return Exit(None, time.monotonic() - start, lost=str(lost), interrupted=self.signal is not None)


class _Lost(Exception):
    """The supervisor is gone; in words, how."""


class _Supervisor:
    """The other process, as the driver sees it."""

    def __init__(self, results: Path) -> None:
        self._line, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", ENTRY, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                env={**os.environ, leftovers.MARK: str(results.resolve())},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def ask(self, request: _Request, stop: process.Stop) -> Exit:
        """Raises _Lost if the supervisor ends, or does not answer, instead."""
        line = self._line
        try:
            line.send_bytes(json.dumps(asdict(request)).encode())
            either = [line.fileno(), stop.fileno()]
            patience = PATIENCE_SECONDS * (2 if request.hosts else 1)
            ready, _, _ = select.select(either, [], [], request.timeout_seconds + patience)
            if ready and line.fileno() not in ready:
                line.send_bytes(STOP)
            if ready and line.poll(patience):
                return Exit(**json.loads(line.recv_bytes()))
        except (OSError, EOFError):
            pass
        raise _Lost(self._how_it_ended())

    def dismiss(self) -> None:
        """Close the line, at which the supervisor ends."""
        self._line.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:  # stopped, or out of its mind
            self._process.kill()
            self._process.wait()
            return "did not answer"
        finally:
            self._line.close()
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


@dataclass(frozen=True)
class _Request:
    """One trial's command. Its temporary folder is removed with it."""

    argv: list[str]
    env: dict[str, str]
    log: str
    timeout_seconds: float
    temporary: str
    hosts: list[str] = field(default_factory=list)


# --- the supervisor's side


def main() -> None:
    """Serve one driver until it closes the line or dies."""
    with Connection(int(sys.argv[1])) as line:
        os.set_inheritable(line.fileno(), False)  # or the trial's processes would hold the line too
        serve(line)


def serve(line: Connection) -> None:
    """Answer each request with how its command ended."""
    # The driver is done, or has died: nothing is left to watch over.
    with contextlib.suppress(EOFError, OSError), Lines() as lines:
        while said := line.recv_bytes():
            if said != STOP:  # which came too late: the trial had ended by itself
                line.send_bytes(json.dumps(asdict(_served(_Request(**json.loads(said)), line, lines))).encode())


def _served(request: _Request, stop: process.Stop, lines: Lines) -> Exit:
    since = leftovers.clock()
    try:
        with lines.trial(request.hosts, request.env.get(leftovers.MARK, ""), request.temporary, stop) as trial:
            ended = process.run(request.argv, request.env, Path(request.log), request.timeout_seconds, trial)
        return trial.judged(ended)
    except Lost as lost:
        return Exit(None, 0.0, node=str(lost))
    except OSError as error:  # no log to be opened, no process to be had
        process.end_descendants()
        return Exit(None, 0.0, error=f"{error.filename or request.argv[0]}: {error.strerror}")
    finally:
        shutil.rmtree(request.temporary, ignore_errors=True)
        leftovers.remove_segments(since)
