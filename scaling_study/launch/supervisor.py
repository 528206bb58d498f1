"""A trial outlives its driver by seconds at most: the supervisor, a process of its own, ends it.

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
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from signal import Signals

import psutil

from scaling_study.hosts.connections import AgentConnections, ConnectionLost
from scaling_study.processes import leftovers, process
from scaling_study.processes.process import Ending, Exit
from scaling_study.settings import CHECKOUT

STOP = b"stop"
ANSWER_SECONDS = 30.0  # beyond a trial's time-out, until a supervisor that does not answer counts as lost
ENTRY = (
    f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from scaling_study.launch import supervisor; supervisor.main()"
)


class SupervisorClient:
    """Runs commands for a sweep through a supervisor, which is started when first needed and again when lost.

    `alone`: there is no other one in this process, so that what a lost supervisor leaves is all that is below it.
    """

    def __init__(self, results: Path, interruption: Ending, alone: bool = True) -> None:
        self.results, self._interruption, self._alone = results, interruption, alone
        self._supervisor: _SupervisorProcess | None = None

    def __enter__(self) -> SupervisorClient:
        process.adopt_orphans()  # the supervisor's, should it be killed
        self._not_ours = {child.pid for child in psutil.Process().children(recursive=True)}
        leftovers.clean(self.results)  # of an earlier sweep
        return self

    def __exit__(self, *_: object) -> None:
        if self._supervisor:
            self._supervisor.end(ANSWER_SECONDS)

    @property
    def signal(self) -> Signals | None:
        """The signal that asks the sweep to end, once there is one."""
        return self._interruption.signal

    def fileno(self) -> int:
        """Readable once the sweep is to end."""
        return self._interruption.fileno()

    def has_started(self, pid: int) -> bool:
        """True of a process on this host that belongs to the command: it is below the supervisor, or carries the mark
        of its results where something else was asked to start it, as sshd of this host."""
        own = self._supervisor
        return bool(own and pid in process.trees([own.pid])) or leftovers.is_marked(pid, self.results)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        timeout_seconds: float,
        hosts: Sequence[str] = (),
        progress: Path | None = None,
        unseen: Path | None = None,
    ) -> Exit:
        """Run a command to its end as `process.run` does, in a process that outlives this one.

        `hosts`: others, on which it starts processes too; none of those outlives it either. `unseen`: of `process.run`.
        """
        temporary = leftovers.temporary_folder(self.results)
        marked = {**env, **leftovers.environment(self.results, temporary)}
        signs, end = (str(each.resolve()) if each else None for each in (progress, unseen))
        own = str(temporary)
        request = _Request(list(argv), marked, str(log.resolve()), timeout_seconds, own, list(hosts), signs, end)
        start = time.monotonic()
        self._supervisor = self._supervisor or _SupervisorProcess(self.results)
        if ended := self._supervisor.ask(request, self):
            return ended
        lost, self._supervisor = self._supervisor.end(1.0, lost=True), None
        leftovers.end_marked(str(self.results.resolve()))
        if self._alone:
            process.end_descendants(not_ours=self._not_ours)
        shutil.rmtree(temporary, ignore_errors=True)
        return Exit(None, time.monotonic() - start, lost=lost, interrupted=self.signal is not None)


class _SupervisorProcess:
    """The other process, as the driver sees it."""

    def __init__(self, results: Path) -> None:
        self._connection, other_end = Pipe()
        with other_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", ENTRY, str(other_end.fileno())],
                pass_fds=[other_end.fileno()],
                env={**os.environ, leftovers.MARK: str(results.resolve())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: _Request, stop: process.Stop) -> Exit | None:
        """How the command ended; None where the supervisor ends, or does not answer, instead."""
        connection = self._connection
        with contextlib.suppress(OSError, EOFError):
            connection.send_bytes(json.dumps(asdict(request)).encode())
            either = [connection.fileno(), stop.fileno()]
            grace = ANSWER_SECONDS * (2 if request.hosts else 1)
            ready = process.wait_while_alive(either, request.timeout_seconds + grace, request.progress)
            if ready and connection.fileno() not in ready:
                connection.send_bytes(STOP)
            if ready and connection.poll(grace):
                return Exit(**json.loads(connection.recv_bytes()))
        return None

    def end(self, patience: float, lost: bool = False) -> str:
        """Close the connection, at which the supervisor ends; how it ended, or that it was killed after so long.

        `lost`: it is to have ended before, by itself.
        """
        try:
            if not lost:
                self._connection.close()
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:  # stopped, or hanging
            self._process.kill()
            self._process.wait()
            return "did not answer"
        finally:
            self._connection.close()
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


@dataclass(frozen=True)
class _Request:
    """One trial's command. Its temporary folder is removed with it."""

    argv: list[str]
    env: dict[str, str]
    log: str
    timeout_seconds: float
    temporary: str
    hosts: list[str]
    progress: str | None
    unseen: str | None


# --- the supervisor's side


def main() -> None:
    """Serve one driver until it closes the connection or dies: answer each request with how its command ended."""
    # Suppressed: the driver is done, or has died, and no trial is left to supervise.
    with Connection(int(sys.argv[1])) as driver, contextlib.suppress(EOFError, OSError), AgentConnections() as agents:
        os.set_inheritable(driver.fileno(), False)  # or the trial's processes would keep it open too
        while message := driver.recv_bytes():
            if message != STOP:  # which came too late: the trial had already ended
                exit = _run(_Request(**json.loads(message)), driver, agents)
                driver.send_bytes(json.dumps(asdict(exit)).encode())


def _run(request: _Request, stop: process.Stop, agents: AgentConnections) -> Exit:
    since = leftovers.clock()
    try:
        with agents.trial(request.hosts, request.env.get(leftovers.MARK, ""), request.temporary, stop) as trial:
            log, seconds, files = Path(request.log), request.timeout_seconds, (request.progress, request.unseen)
            exit = process.run(request.argv, request.env, log, seconds, trial, *files)
        return trial.with_failed_host(exit)
    except ConnectionLost as lost:
        return Exit(None, 0.0, node=str(lost))
    except OSError as error:  # the log cannot be opened, or no process started
        process.end_descendants()
        return Exit(None, 0.0, error=f"{error.filename or request.argv[0]}: {error.strerror}")
    finally:
        shutil.rmtree(request.temporary, ignore_errors=True)
        leftovers.remove_segments(since)
