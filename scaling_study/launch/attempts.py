"""The processes of one trial: started, judged, and started again after a transient failure.

    attempt 1   failed: port: the server socket has failed to listen ...
       wait 1 s    (what it left goes to attempts/1/)
    attempt 2   ok      -> the record says: attempts 2, and in its notes why

decisions.py knows the transient failures; every other outcome is that of the first attempt.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scaling_study import variables
from scaling_study.hosts import connections
from scaling_study.launch import launchers, observed
from scaling_study.launch.decisions import LOG_BYTES, back_off_seconds, failure_kind, largest_batch
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.machine import gpu_use, visible_gpus
from scaling_study.observe import LOST
from scaling_study.processes import leftovers
from scaling_study.processes.leftovers import GpuMemory
from scaling_study.processes.process import Exit
from scaling_study.records import outcome, store
from scaling_study.records.outcome import Outcome
from scaling_study.records.schema import DOUBT, GpuUse, Record, gpus_in_use
from scaling_study.settings import CHECKOUT
from scaling_study.study import command as command_of_user
from scaling_study.study.study import Measure
from scaling_study.study.support import ALONE, Cluster
from scaling_study.trial import Trial, Window

PROBE = Window(warmup_steps=1, min_steps=2, max_steps=2, min_seconds=0.0)  # of find: max_batch: the peak is in step 2
YIELD = "OMPI_MCA_mpi_yield_when_idle"  # a waiting rank of Open MPI yields its core instead of spinning on it
IN_TURN = "scaling_study/worker/in_turn.py"  # in the checkout
CLOCK_SLACK_SECONDS = 1.0  # between two clocks that go alike


@dataclass(frozen=True)
class Attempt:
    """One start of a trial's processes; of several, the last."""

    exit: Exit
    outcome: Outcome
    started_at: float  # Unix seconds
    number: int = 1
    notes: tuple[str, ...] = ()  # what happened before the measurement
    search_result: Mapping[str, Any] = field(default_factory=dict)  # of find: max_batch
    launch: str = ""  # that it shared with other configurations, so that no time to its first step is its own
    other_seconds: float = 0.0  # of the other starts of a search
    gpus_before: tuple[GpuUse, ...] = ()  # as it began; none of a trial on CPUs

    @property
    def launch_seconds(self) -> float | None:
        """From starting the launcher to rank 0's first step; None where none was made, or the clock was stepped."""
        if self.launch or not self.outcome.ranks:
            return None
        seconds = self.outcome.ranks[0].first_step_at - self.started_at
        return seconds if 0 <= seconds <= self.exit.seconds + CLOCK_SLACK_SECONDS else None

    def completed(self, record: Record, verdict: str = "") -> Record:
        """The record of a trial with what came of it. `verdict`: of a parity gate; what trains otherwise has failed."""
        outcome = self.outcome
        stepped = self.outcome.ranks and not self.launch and self.launch_seconds is None
        clock = ["the clock was stepped while it was starting: launch_seconds is unknown"] if stepped else []
        if verdict not in ("", "passed"):
            outcome = replace(outcome, status="failed", reason=f"parity: {verdict}")
        done = replace(
            record,
            parity=verdict,
            found=dict(self.search_result),
            status=outcome.status,
            reason=outcome.reason,
            error=outcome.error,
            notes=[*self.notes, *clock, *outcome.notes],
            ranks=list(outcome.ranks),
            exit_code=self.exit.code,
            total_seconds=self.exit.seconds + self.other_seconds,
            launch_seconds=self.launch_seconds,
            attempts=self.number,
            launch=self.launch,
            gpus_before=list(self.gpus_before),
        )
        in_use = [f"{DOUBT}in use by others before it began: {use}" for use in gpus_in_use(done)]
        return replace(done, notes=[*done.notes, *in_use])


class Attempts:
    """Runs the trials of one sweep, one at a time."""

    def __init__(self, supervisor: SupervisorClient, cluster: Cluster = ALONE) -> None:
        self.supervisor, self._gpus = supervisor, GpuMemory()
        self.group_bytes: dict[frozenset[str], float] = {}  # of configurations that share processes: what these take
        self.cluster = replace(cluster, exports=(*cluster.exports, leftovers.MARK, "TMPDIR"))

    def run_with_retries(self, trial: Trial, folder: Path, measure: Measure) -> Attempt:
        """Attempts in `folder` until one has no transient failure, or measure.retries are used up; the last of them."""
        notes: tuple[str, ...] = ()
        for number in range(1, measure.retries + 2):
            attempt = self.run_once(trial, folder, measure.timeout_seconds, number)
            kind = transient_kind(attempt, folder)
            result = replace(attempt.outcome, reason=f"{kind}: {attempt.outcome.reason}") if kind else attempt.outcome
            attempt = replace(attempt, outcome=result, number=number, notes=(*notes, *attempt.notes))
            if not kind or number > measure.retries:
                break
            notes = (*attempt.notes, f"tried again after: {result.reason}")
            if select.select([self.supervisor.fileno()], [], [], back_off_seconds(number))[0]:  # the sweep is to end
                return replace(attempt, outcome=Outcome("cancelled", "interrupted"))
            (archive := folder / "attempts" / str(number)).mkdir(parents=True)
            for name in ("ranks", "log.txt"):  # not to be taken for the next one's; kept for a person
                if (folder / name).exists():
                    (folder / name).rename(archive / name)
        return attempt

    def run_once(self, trial: Trial, folder: Path, timeout_seconds: float, number: int = 1) -> Attempt:
        """Run one trial's processes in its folder, and judge what they left. `number`: of the attempt."""
        notes = self._gpus.wait_until_freed(self.supervisor) if trial.device == "cuda" else []
        before = gpus_before(trial)
        program = launchers.program(trial, folder.resolve())
        argv, environment, note = launch_line(trial, program, self.supervisor, self.cluster, number)
        others, progress = elsewhere(trial, self.cluster), folder / store.PROGRESS if trial.trained else None
        unseen = folder / observed.SEEN / LOST if trial.command else None
        if trial.command:
            environment = observed.watched(trial, folder, environment)
        started_at = time.time()
        exit = self.supervisor.run(argv, environment, folder / "log.txt", timeout_seconds, others, progress, unseen)
        notes += [note] if note else []
        result = observed.judge(trial, folder, exit) if trial.command else outcome.judge(trial, folder, exit)
        if trial.device == "cuda" and not others and (foreign := outcome.foreign_gpus(result.ranks, visible_gpus())):
            result = Outcome("failed", foreign, ranks=result.ranks)
        return Attempt(exit, result, started_at, notes=tuple(notes), gpus_before=before)

    def run_together(
        self, trials: Sequence[Trial], folders: Sequence[Path], timeout_seconds: float, own: Path
    ) -> list[Attempt]:
        """Trials that one launch can run in turn, each in its folder (worker/in_turn.py).

        Only `ok` says something: a launch that is shared may fail for what another of its trials did. `own`: where the
        launch has its list of trials and its log.
        """
        scripts = [launchers.program(trial, each)[1:] for trial, each in zip(trials, folders, strict=True)]
        asked = [
            {"argv": script, "folder": str(each), "timeout_seconds": timeout_seconds}
            for script, each in zip(scripts, folders, strict=True)
        ]
        store.write_json(own / "trials.json", asked)
        program = [sys.executable, str(CHECKOUT / IN_TURN), str(own / "trials.json")]
        argv, environment, _ = launch_line(trials[0], program, self.supervisor, self.cluster)
        environment["OMP_NUM_THREADS"] = "1"  # what forks has one thread
        environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # and has not begun to use a GPU
        started_at = time.time()
        exit = self.supervisor.run(argv, environment, own / "log.txt", timeout_seconds * len(trials))
        share = replace(exit, seconds=exit.seconds / len(trials))
        return [
            Attempt(share, outcome.judge(trial, each, exit), started_at, launch=own.name)
            for trial, each in zip(trials, folders, strict=True)
        ]

    def find_largest_batch(self, trial: Trial, folder: Path, measure: Measure) -> Attempt:
        """The largest batch_per_worker that fits, and the attempt at it; every try has a folder of its own."""
        tried: dict[int, Attempt] = {}
        unit = trial.accumulation  # which divides each batch

        def fits(units: int) -> bool:
            batch = unit * units
            if not _other_failure(tried):  # it ends the search, as it says nothing about memory
                try_folder = folder / "tries" / f"batch-{batch}"
                try_folder.mkdir(parents=True)
                probe = replace(trial, find=None, batch_per_worker=batch, window=PROBE)
                tried[batch] = self.run_with_retries(probe, try_folder, measure)
            return batch in tried and tried[batch].outcome.status == "ok"

        largest, other_failure = largest_batch(fits, trial.batch_per_worker // unit), _other_failure(tried)
        batch = largest and unit * largest
        result = {"max_batch": batch, "tries": {str(size): attempt.outcome.status for size, attempt in tried.items()}}
        kept = tried[other_failure or batch or min(tried)]
        other_seconds = sum(attempt.exit.seconds for attempt in tried.values() if attempt is not kept)
        return replace(kept, search_result={} if other_failure else result, other_seconds=other_seconds)

    def judge_parity(self, folders: Sequence[Path], timeout_seconds: float, own: Path) -> list[str]:
        """The verdict on each gate: `passed`, or how the framework trains otherwise than one process (parity.json).

        A process of its own compares: what a framework did to torch cannot reach it, and the driver needs no torch.
        `own`: where it leaves parity.txt.
        """
        command = [sys.executable, "-m", "scaling_study.parity.compare", *(str(folder.resolve()) for folder in folders)]
        path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))}
        path |= self.cluster.of_models
        exit = self.supervisor.run(command, path, own / "parity.txt", timeout_seconds * len(folders))

        def verdict(folder: Path) -> str:
            try:
                return str(store.load(folder / "parity.json")["verdict"])
            except (store.UnreadableRecord, KeyError, TypeError):
                return f"could not be judged: exit code {exit.code}, see {own.name}/parity.txt"

        return [verdict(folder) for folder in folders]


def gpus_before(*trials: Trial) -> tuple[GpuUse, ...]:
    """The GPUs that this host shows, as they are before trials begin: others may use them. None where all use CPUs."""
    return tuple(GpuUse(**use) for use in gpu_use()) if any(trial.device == "cuda" for trial in trials) else ()


def transient_kind(attempt: Attempt, folder: Path) -> str:
    """`port` or `rendezvous` for a transient failure; empty for any other outcome."""
    if attempt.outcome.status != "failed" or attempt.exit.lost or attempt.exit.code in (0, None):
        return ""
    reports = any((folder / "ranks").glob("rank-*.json"))
    log = outcome.tail(folder / "log.txt", LOG_BYTES)
    return failure_kind(attempt.outcome.rank_errors, reports, log)


def _other_failure(tried: Mapping[int, Attempt]) -> int | None:
    """The batch size that failed for another reason than memory."""
    return next((size for size, attempt in tried.items() if attempt.outcome.status not in ("ok", "oom")), None)


def launch_line(
    trial: Trial, program: Sequence[str], supervisor: SupervisorClient, cluster: Cluster, number: int = 1
) -> tuple[list[str], dict[str, str], str]:
    """(command line, variables, note) of what starts `program` as a trial's ranks. `number`: of the attempt."""
    hosts, port, note = cluster.hosts_of(trial), None, ""
    needs = trial.launcher in (launchers.NEED_PORT_OVER_HOSTS if hosts else launchers.NEED_PORT)
    if needs or any(launchers.PORT in word for word in (*program, trial.env or "")):
        port = launchers.preferred_port(trial, number)
        if not hosts or hosts[0].name not in elsewhere(trial, cluster):  # a port of another host can only be tried
            port, note = leftovers.choose_port(port, launchers.PORTS, supervisor)
    command = launchers.launch(trial, program, port, _as_horovodrun_knows(trial, cluster))
    environment = dict(command.env) if trial.command else launch_environment(command)  # a user's own PATH stays
    if hosts:
        cleared = variables.env_without_private(os.environ, command.env)  # of variables that it must not see
    else:  # a stale value of one that the launch sets is replaced
        cleared = variables.env_without(name for name in removed_variables(trial, cluster) if name not in environment)
    return [*cleared, *command.argv], environment, note


def elsewhere(trial: Trial, cluster: Cluster) -> list[str]:
    """The hosts of a trial that are not this one."""
    return connections.other_hosts(host.name for host in cluster.hosts_of(trial))


def _as_horovodrun_knows(trial: Trial, cluster: Cluster) -> Cluster:
    """The hosts as horovodrun is to have them, which would ask ssh for this one by a name that is its loopback's.

    What ssh starts here is below no supervisor, and many a host does not let itself in. An address will do: of the
    interface that leads to the others.
    """
    if "horovodrun" not in (trial.launcher, command_of_user.starter(trial)) or not (
        others := elsewhere(trial, cluster)
    ):
        return cluster
    strange = [
        host.name
        for host in cluster.hosts_of(trial)
        if host.name not in others and connections.names_no_interface(host.name)
    ]
    try:
        names = dict.fromkeys(strange, connections.address_for(others[0])) if strange else {}
    except OSError:  # a name that only ssh knows
        return cluster
    return replace(cluster, hosts=tuple(replace(host, name=names.get(host.name, host.name)) for host in cluster.hosts))


def removed_variables(trial: Trial, cluster: Cluster) -> list[str]:
    """The variables of this process that a trial on this machine does not get. Over hosts there is a list of those that
    it gets."""
    if cluster.hosts_of(trial):
        return []
    in_job = "srun" in (trial.launcher, command_of_user.starter(trial))
    return list(variables.removed(os.environ, cluster.environment(trial), in_job))


def launch_environment(command: launchers.Command) -> dict[str, str]:
    """The command's own variables, with this environment's programs (mpirun) first on the path."""
    bin = str(Path(command.argv[0]).parent)
    path = os.environ.get("PATH", os.defpath)
    home = {} if os.environ.get("HOME") else {"HOME": os.path.expanduser("~")}  # Open MPI 5 does not start without
    yields = {YIELD: os.environ.get(YIELD, "1")}  # our patch of Horovod has it; a Horovod that others built has not
    return {"PATH": f"{bin}{os.pathsep}{path}" if os.path.isabs(bin) else path, **home, **yields, **command.env}
