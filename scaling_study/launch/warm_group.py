"""A group of processes that measures several configurations in turn, as the driver sees it.

    driver --- supervisor --- launcher --- rank 0 ---+     ends them, whatever the driver dies of (supervisor.py)
      |                          \\-------- rank 1 --+ |     (on another host: by its agent there, hosts/agent.py)
      +------ a connection to each rank -------------+-+     "build 0", "block 0", ... (worker/in_blocks.py)
      +------ SIGSTOP, SIGCONT ----------------------+-+     while another group has its turn

Only ranks and the processes that they started are stopped. Launchers and agents use no time while they wait, and would
take each other for lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.hosts.connections import AgentConnections, ConnectionLost, address_for
from scaling_study.launch import attempts, launchers
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.processes import process
from scaling_study.processes.process import Exit
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.study.support import ALONE, Cluster
from scaling_study.trial import Trial

IN_BLOCKS = "scaling_study/worker/in_blocks.py"  # in the checkout
BLOCKS, REQUEST = "blocks.jsonl", "request.json"  # in a group's folder: one line a block; what its ranks are to do
LOOK_SECONDS = 0.2  # between two looks at whether the launcher still lives
GREETING_SECONDS, GREETING_BYTES = 5.0, 4096  # that a rank may take to say who it is
STRANGERS = 128  # that may wait at our port and leave room for ranks
LEAVE_SECONDS = 20.0  # for ranks to end once they are asked to
LONGEST_SECONDS = 1e7  # of a launch; each build and each block has a time-out of its own
MORE_LIKELY = 500  # to be killed where the host is out of memory: whoever runs, whose step asked for it
# How long a peer may seem silent: as long as it may be stopped. torch's watchdog of NCCL counts a collective that has
# ended, and that it has not looked at yet, as late once it is older than ten minutes; a second thread ends the process
# where the watchdog made no step for eight (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: checkTimeout, heartbeat).
PATIENT = {
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "86400",
    "HOROVOD_STALL_CHECK_DISABLE": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}


class GroupFailed(Exception):
    """The group's processes ended or are to be ended.

    `trials`: those that may have caused it. `said`: a rank reported an error of the trial whose turn it was. `late`:
    they had not all joined in time, and another start would take as long.
    """

    def __init__(self, why: str, trials: Sequence[Trial], said: bool = False, late: bool = False) -> None:
        super().__init__(why)
        self.trials, self.said, self.late = trials, said, late


class Interrupted(Exception):
    """The sweep is to end."""


@dataclasses.dataclass(frozen=True)
class Rank:
    connection: Connection
    pid: int
    host: str  # as it calls itself


@dataclasses.dataclass(eq=False)
class Caller:
    """A connection to our port, until it has said whose it is."""

    line: socket.socket
    deadline: float = dataclasses.field(default_factory=lambda: time.monotonic() + GREETING_SECONDS)
    heard: bytes = b""

    def greeting(self, key: str) -> dict[str, Any] | None:
        """The rank, its pid and host, as its first message says; empty: of somebody who does not know the key.

        None: it is not whole yet, which it may be for GREETING_SECONDS. Nothing is waited for in here.
        """
        try:
            self.heard += (more := self.line.recv(GREETING_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return None if time.monotonic() < self.deadline else {}
        except OSError:
            return {}
        size = int.from_bytes(self.heard[:4], "big", signed=True)  # before each message of multiprocessing.connection
        if more and len(self.heard) < 4 + size <= GREETING_BYTES:
            return None
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            told: dict[str, Any] = json.loads(self.heard[4:])
            return told if secrets.compare_digest(told["key"], key) else {}
        return {}


@dataclasses.dataclass
class WarmGroup:
    """The processes of one group. Entering starts them; after leaving, or `end`, none of them lives.

    `begin` starts them earlier, so that several groups start side by side; `leave` asks them to end, so that several
    end so. They are stopped except within `turn`, in which they build configurations and time blocks. What is written
    here of a block is written after its turn: meanwhile a loader would read ahead for the next block. Methods raise
    GroupFailed, and Interrupted once `asked_to_stop` is readable.
    """

    trials: Sequence[Trial]
    folder: Path  # for request.json, log.txt and blocks.jsonl
    folders: Sequence[Path]  # of the trials, into which ranks write their reports after every block
    timeout_seconds: float  # of each request
    cluster: Cluster = ALONE
    asked_to_stop: process.Stop | None = None
    attempt: int = 1  # at starting these configurations

    def __post_init__(self) -> None:
        self._stop = [self.asked_to_stop.fileno()] if self.asked_to_stop else []
        self.ranks: list[Rank] = []
        self.exit: Exit | None = None
        self.changed: dict[int, set[str]] = {}  # index -> settings of the process that its blocks changed; put back
        self._unwritten: list[Callable[[], None]] = []  # each writes what a turn has measured, once it is over
        self._others, self._agents = attempts.elsewhere(self.trials[0], self.cluster), AgentConnections()
        self._ending = process.Ending()
        self._launch: threading.Thread | None = None
        self._server: socket.socket | None = None  # at which ranks call, until all have
        self._failed: GroupFailed | None = None  # as they could not join
        self._key, self._leaving, self._ended = secrets.token_hex(32), False, False

    def __enter__(self) -> WarmGroup:
        try:
            self.join()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.leave()
        self.end(LEAVE_SECONDS if kind is None else 0.0)

    def build(self, index: int, inspect: bool = True) -> list[Mapping[str, Any]]:
        """Have the ranks build a configuration, warm it up and, if asked to, `inspect` its steps; each one's answer."""
        return self._ask("build", index, inspect=inspect)

    def gate(self, index: int) -> None:
        """Have the ranks train a parity gate, as its script would."""
        self._ask("gate", index)

    def block(self, index: int, block: int, steps: int, untimed: bool) -> list[list[float]]:
        """Have the ranks time so many steps; each rank's seconds of each. Their reports are on the disk by then."""
        at = time.time()
        answers = self._ask("block", index, block=block, steps=steps, untimed=untimed)
        self.changed.setdefault(index, set()).update(*(answer["changed"] for answer in answers))
        taken: list[list[float]] = [answer["step_seconds"] for answer in answers]
        self._unwritten.append(functools.partial(self._note, index, block, at, taken))
        return taken

    def _note(self, index: int, block: int, at: float, taken: list[list[float]]) -> None:
        with (self.folder / BLOCKS).open("a", encoding="utf-8") as stream:
            line = {"trial": self.trials[index].id, "round": block, "at": at, "step_seconds": taken}
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def stop(self) -> None:
        """Stop the ranks and all that they started (SIGSTOP)."""
        self._signal(signal.SIGSTOP, 0)

    def resume(self) -> None:
        self._signal(signal.SIGCONT, MORE_LIKELY)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Let the ranks run within the block, and stop them after it; then write what was measured."""
        self.resume()
        yield
        self.stop()
        while self._unwritten:
            self._unwritten.pop(0)()

    def begin(self) -> None:
        """Start the launcher, and wait for nothing."""
        first = self.trials[0]
        try:  # ranks connect from any host of the group
            address = address_for(self._others[0]) if self._others else launchers.LOOPBACK
            self._server = socket.create_server((address, 0), backlog=first.processes + STRANGERS)
        except OSError as error:  # a name that only ssh knows
            why = f"{self._others[0]}: no address here by which its ranks could call: {error.strerror}"
            raise GroupFailed(f"{why}; `interleave: false` needs none", self.trials) from error
        self.folder.mkdir(parents=True, exist_ok=True)
        asked, called = self.folder / REQUEST, self._request()
        asked.touch(mode=0o600)  # whoever has the key can tell our ranks what to do
        told = {**called, "address": self._server.getsockname(), "key": self._key}
        asked.write_text(json.dumps(told), encoding="utf-8")
        self._launch = threading.Thread(target=self._run, args=[first, asked], name="launch", daemon=True)
        self._launch.start()

    def join(self) -> None:
        """Wait until every rank has joined its peers and called, and stop them all."""
        if self._failed:
            raise self._failed
        if self.ranks:
            return
        if not self._launch:
            self.begin()
        assert self._server
        try:
            with self._server:
                self._meet(self._server, self.trials[0].processes)
        except GroupFailed as failed:
            self._failed = failed
            raise
        store.write_json(self.folder / REQUEST, self._request())  # without the key: all have read it
        self.stop()

    def leave(self) -> None:
        """Ask the ranks to leave their peers and end, and wait for nothing."""
        if not self._leaving:
            self._leaving = True
            with contextlib.suppress(OSError, GroupFailed):
                self.resume()
                for rank in self.ranks:
                    rank.connection.send_bytes(json.dumps({"do": "leave"}).encode())

    def _request(self) -> dict[str, Any]:
        trials = [
            {"trial": {**trial.to_dict(), "window": dataclasses.asdict(trial.window)}, "folder": str(each.resolve())}
            for trial, each in zip(self.trials, self.folders, strict=True)
        ]
        return {"script": str(CHECKOUT / FRAMEWORKS[self.trials[0].framework].script), "trials": trials}

    def _run(self, first: Trial, asked: Path) -> None:
        """Run the launcher from its start to its end (in a thread)."""
        with SupervisorClient(self.folder, self._ending, alone=False) as supervisor:
            program = [sys.executable, str(CHECKOUT / IN_BLOCKS), str(asked.resolve())]
            argv, environment, _ = attempts.launch_line(first, program, supervisor, self.cluster, self.attempt)
            own, log = {**environment, **PATIENT}, self.folder / "log.txt"
            self.exit = supervisor.run(argv, own, log, LONGEST_SECONDS, self._others)

    def _meet(self, server: socket.socket, expected: int) -> None:
        """Wait until so many ranks have called; whoever else calls is refused, and delays nobody."""
        deadline, ranks, callers = time.monotonic() + self.timeout_seconds, dict[int, Rank](), list[Caller]()
        while len(ranks) < expected:
            if time.monotonic() > deadline:
                who = f"only {len(ranks)} of {expected} ranks had" if ranks else "its ranks had not"
                why, late = f"{who} joined after {self.timeout_seconds:.0f} s", bool(ranks or self.trials[0].command)
                raise GroupFailed(why, self.trials, late=late)
            ready = wait([server, *(caller.line for caller in callers), *self._stop], LOOK_SECONDS)
            if {*self._stop} & {*ready}:
                raise Interrupted
            if not ready and not (self._launch and self._launch.is_alive()):
                raise GroupFailed("the launch ended before its ranks had joined", self.trials)
            if server in ready:
                callers.append(Caller(server.accept()[0]))
            for caller in list(callers):
                if (told := caller.greeting(self._key)) is not None:
                    callers.remove(caller)
                    if told:
                        ranks[told["rank"]] = self._welcome(caller, told, expected)
                    else:
                        caller.line.close()
        self.ranks = [ranks[rank] for rank in sorted(ranks)]

    def _welcome(self, caller: Caller, told: Mapping[str, Any], expected: int) -> Rank:
        if "error" in told:
            raise GroupFailed(f"rank {told['rank']}: {told['error']}", self.trials, said=True)
        if (world := told.get("world") or expected) != expected:
            raise GroupFailed(f"asked for workers={expected}, its command started {world}", self.trials, said=True)
        return Rank(Connection(caller.line.detach()), told["pid"], told["host"])

    def _ask(self, what: str, index: int, **how: Any) -> list[Mapping[str, Any]]:
        """Ask all ranks and wait for all answers, by rank."""
        deadline, trial = time.monotonic() + self.timeout_seconds, [self.trials[index]]
        message = json.dumps({"do": what, "trial": index, **how}).encode()
        answers: dict[int, Mapping[str, Any]] = {}
        if self._stop and wait(self._stop, 0):
            raise Interrupted
        try:
            for rank in self.ranks:
                rank.connection.send_bytes(message)
            while waiting := {r.connection: at for at, r in enumerate(self.ranks) if at not in answers}:
                left = deadline - time.monotonic()
                ready = wait([*waiting, *self._stop], min(LOOK_SECONDS, max(0.0, left)))
                if {*self._stop} & {*ready}:
                    raise Interrupted
                if not ready and not (self._launch and self._launch.is_alive()):  # the host of a rank may be gone
                    raise GroupFailed(f"{what}: the launch ended", trial)
                if not ready and left <= 0:
                    raise GroupFailed(f"{what}: not finished after {self.timeout_seconds:.0f} s", trial)
                for connection in (each for each in ready if isinstance(each, Connection)):
                    answers[waiting[connection]] = answer = json.loads(connection.recv_bytes())
                    if "error" in answer:
                        raise GroupFailed(f"rank {waiting[connection]}: {answer['error']}", trial, said=True)
        except (EOFError, OSError) as error:
            raise GroupFailed(f"{what}: a rank ended", trial) from error
        return [answers[at] for at in range(len(self.ranks))]

    def _signal(self, number: signal.Signals, more_likely: int) -> None:
        pids: dict[str, list[int]] = {}
        for rank in self.ranks:
            pids.setdefault(rank.host, []).append(rank.pid)
        process.signal_trees(pids.get(socket.gethostname(), ()), number, more_likely)
        if self._others and self.ranks:
            try:
                asked = {"ask": "signal", "pids": pids, "number": int(number), "more_likely": more_likely}
                self._agents.ask(self._others, asked)
            except ConnectionLost as lost:
                raise GroupFailed(str(lost), self.trials) from lost

    def end(self, patience: float = 0.0) -> None:
        """Wait so long for the processes to end by themselves; then have the supervisor end them."""
        if self._ended:
            return
        self._ended = True
        if self._server:
            self._server.close()
        if self._launch:
            self._launch.join(patience)
            if self._launch.is_alive():
                self._ending.end()
                self._launch.join()
        for rank in self.ranks:
            rank.connection.close()
        self._agents.close()
        self._ending.close()
