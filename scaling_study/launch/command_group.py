"""A user's command as a group of one configuration: its processes wait for the driver between two of their own steps.

    driver --- supervisor --- command --- rank 0 ---+     started with the observer on PYTHONPATH
       +------ a connection to each rank, which calls once it has made its first steps (observe/held.py)
       +------ SIGSTOP, SIGCONT of ranks and of the processes that they started: loaders read nothing ahead meanwhile

The driver asks for the same as of a group of ours ("build", "block"); the observer's files say what was measured, and
the reports are made of them here, after every block, while all are stopped.
"""

from __future__ import annotations

import dataclasses
import functools
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaling_study.launch import attempts, launchers, observed
from scaling_study.launch.observed import SEEN, NotObserved, Turn
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.launch.warm_group import LONGEST_SECONDS, PATIENT, Caller, GroupFailed, Rank, WarmGroup
from scaling_study.trial import Trial


@dataclasses.dataclass
class CommandGroup(WarmGroup):
    """The processes of one command."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.turns: list[Turn] = []
        self.supervisor: SupervisorClient | None = None  # once it was asked to start the command

    def begin(self) -> None:
        """Start the command, and wait for nothing."""
        for own in (self.folder / SEEN, self.folder / "run"):  # here, where a full disk ends the sweep in words
            own.mkdir(parents=True, exist_ok=True)
        super().begin()

    def build(self, index: int, inspect: bool = True) -> list[Mapping[str, Any]]:
        """Each rank's fastest step so far, and its memory. Raises GroupFailed where its work is not what was asked."""
        answers = super().build(index, inspect)
        last = Turn(0, max(0, answers[0]["steps"] - 1), 1, time.time())
        self._unwritten.append(functools.partial(self._report, [last]))
        return answers

    def block(self, index: int, block: int, steps: int, untimed: bool) -> list[list[float]]:
        """Let the ranks make so many steps; each rank's seconds of each."""
        at = time.time()
        # A loader has filled its queue while others joined: in the first block that is used up before it is timed.
        before = max(1, steps // 4) if untimed and block == 0 else int(untimed)
        answers = self._ask("block", index, block=block, steps=steps, untimed=before)
        if block == 0:
            self.turns = []
        self.turns.append(Turn(block, answers[0]["steps"] - steps, steps, at))
        taken: list[list[float]] = [answer["step_seconds"] for answer in answers]
        self._unwritten.append(functools.partial(self._report, self.turns))
        self._unwritten.append(functools.partial(self._note, index, block, at, taken))
        return taken

    def _welcome(self, caller: Caller, told: Mapping[str, Any], expected: int) -> Rank:
        """A rank that called. Raises GroupFailed where the process that it names is none of the command's: in a
        container with pids of its own that number is another process's here, which would be stopped in its place."""
        rank = super()._welcome(caller, told, expected)
        elsewhere = self._others and rank.host != socket.gethostname()  # where an agent stops it
        if not elsewhere and not (self.supervisor and self.supervisor.has_started(rank.pid)):
            where = f"process {rank.pid} of {rank.host}"
            why = f"its rank {told['rank']} says that it is {where}, which the command did not start here"
            raise GroupFailed(f"it cannot be held between steps: {why} (in a container?)", self.trials, said=True)
        return rank

    def _report(self, turns: list[Turn]) -> None:
        trial = self.trials[0]
        try:
            observed.write_reports(trial, self.folder / SEEN, self.folders[0], turns)
        except NotObserved as error:
            raise GroupFailed(str(error), self.trials, said=True) from error

    def _run(self, first: Trial, asked: Path) -> None:
        """Run the command from its start to its end (in a thread)."""
        with SupervisorClient(self.folder, self._ending, alone=False) as supervisor:
            self.supervisor = supervisor
            program = launchers.program(first, self.folder.resolve())
            argv, environment, _ = attempts.launch_line(first, program, supervisor, self.cluster, self.attempt)
            environment = observed.observing(first, environment, self.folder, driver=asked) | PATIENT
            self.exit = supervisor.run(argv, environment, self.folder / "log.txt", LONGEST_SECONDS, self._others)
