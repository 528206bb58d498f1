"""The processes of one trial: started, judged, and started again where the cause of a failure passes by itself.

    attempt 1   failed: port: the server socket has failed to listen ...
       wait 1 s    (what it left goes to attempts/1/)
    attempt 2   ok      -> the record says: attempts 2, and in its notes why

Which failures pass is in transient.py; whatever else comes of a trial comes of its first attempt.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scaling_study.hosts import allocation, connection, exported
from scaling_study.launch import largest, launchers, transient
from scaling_study.launch.supervisor import Watch
from scaling_study.processes import leftovers, ports
from scaling_study.processes.gpu_memory import GpuMemory
from scaling_study.processes.process import Exit
from scaling_study.records import outcome, store
from scaling_study.records.outcome import Outcome
from scaling_study.settings import CHECKOUT
from scaling_study.study.cluster import ALONE, Cluster
from scaling_study.study.schema import Measure
from scaling_study.trial import Trial, Window

TRY = Window(warmup_steps=1, min_steps=2, max_steps=2, min_seconds=0.0)  # of find: max_batch: the peak is in step 2
CLOCK_SLACK_SECONDS = 1.0  # between two clocks that go alike


@dataclass(frozen=True)
class Attempt:
    """One start of a trial's processes; of several, the last."""

    exit: Exit
    outcome: Outcome
    started_at: float  # Unix seconds
    number: int = 1
    notes: tuple[str, ...] = ()  # what happened before the measurement
    found: Mapping[str, Any] = field(default_factory=dict)  # of find: max_batch

    @property
    def launch_seconds(self) -> float | None:
        """From starting the launcher to rank 0's first step; None where none was made, or the clock was stepped."""
        seconds = self.outcome.ranks[0].first_step_at - self.started_at if self.outcome.ranks else -1.0
        return seconds if 0 <= seconds <= self.exit.seconds + CLOCK_SLACK_SECONDS else None

    @property
    def said(self) -> list[str]:
        """All that is to be noted, in the order in which it happened."""
        stepped = self.outcome.ranks and self.launch_seconds is None
        clock = ["the clock was stepped while it was starting: launch_seconds is not known"] if stepped else []
        return [*self.notes, *clock, *self.outcome.notes]


class Attempts:
    """Runs the trials of one sweep, one at a time."""

    def __init__(self, watch: Watch, cluster: Cluster = ALONE) -> None:
        self.watch, self._gpus = watch, GpuMemory()
        self._cluster = replace(cluster, exports=(*cluster.exports, leftovers.MARK, "TMPDIR"))

    def lasting(self, trial: Trial, folder: Path, measure: Measure) -> Attempt:
        """Attempts in `folder` until one is not to be tried again: whatever came of it, or measure.retries used up."""
        notes: tuple[str, ...] = ()
        for number in range(1, measure.retries + 2):
            made = self.once(trial, folder, measure.timeout_seconds, number)
            why = self.passing(made, folder)
            result = replace(made.outcome, reason=f"{why}: {made.outcome.reason}") if why else made.outcome
            made = replace(made, outcome=result, number=number, notes=(*notes, *made.notes))
            if not why or number > measure.retries:
                break
            notes = (*made.notes, f"tried again after: {result.reason}")
            if self._waited(transient.back_off_seconds(number)):
                return replace(made, outcome=Outcome("cancelled", "interrupted"))
            _move_away(folder, folder / "attempts" / str(number))
        return made

    def once(self, trial: Trial, folder: Path, timeout_seconds: float, number: int = 1) -> Attempt:
        """Run one trial's processes in its folder, and judge what they left. `number`: of the attempt."""
        notes = self._gpus.returned(self.watch) if trial.device == "cuda" else []
        port = None
        over = self._cluster.of(trial)
        others = connection.others(host.name for host in over)
        if trial.launcher in (launchers.TOLD_OVER_HOSTS if over else launchers.TOLD_THEIR_PORT):
            port, why = launchers.preferred_port(trial, number), ""
            if not (over and over[0].name in others):  # where another host listens, only trying tells
                port, why = ports.free(port, launchers.PORTS, self.watch)
            notes += [why] if why else []
        command = launchers.command(trial, record=folder.resolve(), port=port, cluster=self._cluster)
        argv = [*_not_seen(trial, command, bool(over)), *command.argv]
        started_at = time.time()
        ended = self.watch.run(argv, environment(command), folder / "log.txt", timeout_seconds, others)
        return Attempt(ended, outcome.judge(trial, folder, ended), started_at, notes=tuple(notes))

    def largest_batch(self, trial: Trial, folder: Path, measure: Measure) -> Attempt:
        """The largest batch_per_worker that fits, and the attempt at it; every try has a folder of its own."""
        tried: dict[int, Attempt] = {}

        def fits(batch: int) -> bool:
            if not _odd(tried):  # a failure of another kind ends the search: it says nothing about memory
                there = folder / "tries" / f"batch-{batch}"
                there.mkdir(parents=True)
                attempted = replace(trial, find=None, batch_per_worker=batch, window=TRY)
                tried[batch] = self.lasting(attempted, there, measure)
            return batch in tried and tried[batch].outcome.status == "ok"

        batch, odd = largest.search(fits, trial.batch_per_worker), _odd(tried)
        found = {"max_batch": batch, "tries": {str(size): made.outcome.status for size, made in tried.items()}}
        return replace(tried[odd or batch or min(tried)], found={} if odd else found)

    def judged(self, folder: Path, timeout_seconds: float) -> str:
        """`passed`, or why the framework does not train what one process would; the checks stay in parity.json.

        A process of its own compares: what a framework did to torch cannot reach it, and the driver needs no torch.
        """
        command = [sys.executable, "-m", "scaling_study.parity.check", str(folder.resolve())]
        path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))  # users' workloads
        ended = self.watch.run(command, {"PYTHONPATH": path}, folder / "parity.txt", timeout_seconds)
        try:
            return str(store.load(folder / "parity.json")["verdict"])
        except (store.UnreadableRecord, KeyError, TypeError):
            return f"could not be judged: exit code {ended.code}, see {folder.name}/parity.txt"

    def passing(self, made: Attempt, folder: Path) -> str:
        """`port` or `rendezvous` for a failure that passes; empty for all else."""
        if made.outcome.status != "failed" or made.exit.lost or made.exit.code in (0, None):
            return ""
        reports = any((folder / "ranks").glob("rank-*.json"))
        log = outcome.tail(folder / "log.txt", transient.LOG_BYTES)
        return transient.kind(outcome.errors(folder), reports, log)

    def _waited(self, seconds: float) -> bool:
        """Let some time pass; True, at once, if the sweep is to end meanwhile."""
        return bool(select.select([self.watch.fileno()], [], [], seconds)[0])


def _odd(tried: Mapping[int, Attempt]) -> int | None:
    """The batch size that failed of something else than memory."""
    return next((size for size, made in tried.items() if made.outcome.status not in ("ok", "oom")), None)


def _move_away(folder: Path, there: Path) -> None:
    """What an attempt left must not be taken for the next one's; it stays for whoever looks into it."""
    there.mkdir(parents=True)
    for name in ("ranks", "log.txt"):
        if (folder / name).exists():
            (folder / name).rename(there / name)


def _not_seen(trial: Trial, command: launchers.Command, over_hosts: bool) -> list[str]:
    """What stands before a command so that it sees no more of this environment than it should."""
    if over_hosts:
        return exported.without(os.environ, command.env)
    return [] if trial.launcher == "srun" else allocation.hidden()


def environment(command: launchers.Command) -> dict[str, str]:
    """The command's own variables, with this environment's programs (mpirun) first on the path."""
    bin = str(Path(command.argv[0]).parent)
    path = os.environ.get("PATH", os.defpath)
    home = {} if os.environ.get("HOME") else {"HOME": os.path.expanduser("~")}  # Open MPI 5 does not start without
    return {"PATH": f"{bin}{os.pathsep}{path}" if os.path.isabs(bin) else path, **home, **command.env}
