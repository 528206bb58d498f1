"""--slurm: a study -> jobs. Scripts are written, submitted with sbatch, and noted on disk before and after."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from scaling_study import settings
from scaling_study.errors import HostError, StudyError
from scaling_study.hosts import hosts
from scaling_study.hosts.hosts import Host
from scaling_study.launch.attempts import Attempts
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.machine import Machine, this_machine
from scaling_study.processes import process
from scaling_study.records import results, store
from scaling_study.records.store import Record
from scaling_study.settings import CHECKOUT
from scaling_study.slurm import batch_script, collect, jobs
from scaling_study.slurm.batch_script import Options, ScriptParts
from scaling_study.slurm.jobs import Job, SlurmUnavailable
from scaling_study.study.documents import Document
from scaling_study.study.machine_file import MachineFile
from scaling_study.study.plan import Plan, Planned
from scaling_study.study.study import Measure, Study
from scaling_study.study.support import Cluster, unsupported
from scaling_study.sweep import Run
from scaling_study.trial import Trial

# `run_sweep.py --job results/<study>/slurm/<name>`: what a job of one trial runs. It writes the trial's record.
#
# The trial is started, watched, timed out and judged by the same code as in a sweep, in the job itself: no submitter
# need be alive when it ends. Many such jobs share a results folder; each writes to its own trial's folder alone.

INTERRUPTED = 130


def run(folder: Path, cluster: Cluster) -> int:
    """Run the trial of the job whose folder this is; the exit code."""
    results = folder.parent.parent
    job, begun = jobs.read(folder / jobs.FILE), store.read_record(folder / store.BEGUN)
    trial = begun.trial
    measure, machine = Measure.model_validate(job.measure), this_machine()
    planned = Planned(trial, measure, unsupported(trial, machine, cluster))  # on what the job really got
    study = Study(begun.study, "weak", None, 0, measure, (), Document(Path(), "", {}, {}))
    sweep = Run(Plan(study, machine, (planned,), (), cluster=cluster), results, prune=False)
    with (
        process.Interruption() as interruption,
        SupervisorClient(results / "trials" / trial.id, interruption) as supervisor,
    ):
        record = sweep.run_trial(trial, planned, Attempts(supervisor, cluster))
    print(f"{trial.id}: {record.status} {record.reason}" if record else f"{trial.id}: interrupted", flush=True)
    return 0 if record else INTERRUPTED


FRONT_DOOR = str(CHECKOUT / "run_sweep.py")
SUBMITTER_FLAGS = ("--per-trial", "--json", "--slurm-print")  # of the command line, not passed on to the job
SUBMITTER_OPTIONS = ("--slurm",)  # the same, with a value


@dataclass(frozen=True)
class Request:
    """A submission as the command line asks for it, with the lines of the machine file."""

    study: str
    results: Path  # results/<study>
    options: Options
    setup: Sequence[str] = ()  # shell lines
    container: Sequence[str] = ()  # words before a command
    machine: Sequence[str] = ()  # words that name the machine file

    def script(self, job: Job, title: str, words: Sequence[str], options: Options) -> str:
        """A job's batch script; `words` follow the interpreter."""
        python = "python" if self.container else sys.executable  # a container has its own
        files = jobs.folder_of(self.results.resolve(), job)
        command = [python, FRONT_DOOR, *words]
        parts = ScriptParts(title, job.name, Path.cwd(), files, command, options, self.setup, self.container)
        return batch_script.batch_script(parts)


@dataclass(frozen=True)
class SlurmArguments:
    """The Slurm options of the command line."""

    options: str = ""
    per_trial: bool = False
    print_only: bool = False  # --slurm-print
    machine: str = ""  # the machine file, as named there

    def request(self, results: Path, file: MachineFile) -> Request:
        """Raises StudyError for options that Slurm would refuse or misread."""
        options = batch_script.parse_options(self.options, file.slurm, f"--machine {self.machine}")
        words = ("--machine", self.machine) if self.machine else ()
        return Request(results.name, results, options, file.setup, file.words_before, words)

    def nodes(self, options: Options, here: Machine) -> tuple[Machine, tuple[Host, ...]]:
        """The machine that a node of the partition is, and every node; `here` where a script is only printed and Slurm
        does not answer. Raises HostError."""
        try:
            listing = jobs.list_nodes(options.get("nodelist", ""))
        except SlurmUnavailable:
            if self.print_only:
                return here, ()
            raise
        nodes = batch_script.parse_nodes(listing, options.get("partition", ""))
        return batch_script.node_machine(nodes, options, here), tuple(Host(node.name, node.cores) for node in nodes)


def submit_sweep(console: Console, request: Request, argv: Sequence[str], print_only: bool, as_json: bool) -> None:
    """One job for the whole study; with `print_only` print its script instead. `argv`: this command line."""
    job, script = _sweep_job(request, words_for_job(argv))
    if print_only:
        return _print_script(request, job, script)
    refuse_live_jobs(request.results)  # before the lock, which a sweep that runs in its job holds
    with results.locked(request.results):
        job = _submit(request.results, job, script)
    _confirm(console, [job], as_json)


def submit_trials(console: Console, request: Request, run: Run, print_only: bool, as_json: bool) -> None:
    """A job for each trial that is neither finished nor in one; with `print_only` print the first one's script.

    Raises StudyError where trials are to share launches.
    """
    if any(planned.trial.warm for planned in run.plan.configurations):
        raise StudyError(["measure: warm is true, but a job of one trial shares its launch with nobody: warm: false"])
    if print_only:
        trials = list(run.trials())
        trial, planned = next((pair for pair in trials if not pair[1].unsupported), trials[0])
        return _print_script(request, *_trial_job(request, trial, planned))
    collect.record_ended_jobs(request.results)
    submitted = []
    with results.locked(request.results):
        run.open()
        for trial, planned in _trials_to_submit(run):
            job, script = _trial_job(request, trial, planned)
            submitted.append(_submit(request.results, job, script, run.begun(trial, planned)))
    _confirm(console, submitted, as_json)


def words_for_job(argv: Sequence[str]) -> list[str]:
    """A command line without the options that concern only its submitter."""
    kept, words = [], iter(argv)
    for word in words:
        if word in SUBMITTER_OPTIONS:
            next(words, None)
        elif word not in SUBMITTER_FLAGS and not word.startswith(tuple(f"{name}=" for name in SUBMITTER_OPTIONS)):
            kept.append(word)
    return kept


def refuse_live_jobs(folder: Path) -> None:
    """Raises HostError if jobs of this folder wait or run, except the one that this process runs in."""
    pending, own = list(jobs.uncollected(folder)), hosts.current()
    if not pending or (own and own.name in {job.name for job in pending}):  # no other was live when it was submitted
        return
    if live := [observed.job.id for observed in collect.observe_jobs(folder) if not observed.ended]:
        some = ", ".join(live[:5]) + (", ..." if len(live) > 5 else "")
        raise HostError(
            f"{folder}: {len(live)} pending or running Slurm jobs ({some}); --status lists them, --collect records "
            "those that have ended, and scancel ends them"
        )


def _sweep_job(request: Request, words: Sequence[str]) -> tuple[Job, str]:
    """The job that runs the ordinary sweep inside its allocation, `words` being its command line, and its script."""
    job = Job(jobs.new_name(request.study), jobs.next_sweep(request.results), settings.utc_now())
    return job, request.script(job, f"{request.study}: all of its trials in one job", words, request.options)


def _trial_job(request: Request, trial: Trial, planned: Planned) -> tuple[Job, str]:
    """The job that runs one trial, with what that trial needs, and its script."""
    measure = planned.measure.model_dump()
    job = Job(jobs.new_name(request.study), trial.id, settings.utc_now(), trial=trial.id, measure=measure)
    options = batch_script.trial_options(trial, request.options)
    words = ["--job", str(jobs.folder_of(request.results.resolve(), job)), *request.machine]
    return job, request.script(job, f"{request.study}: trial {trial.id}", words, options)


def _trials_to_submit(run: Run) -> list[tuple[Trial, Planned]]:
    """The trials that are neither finished nor in a job. Those that cannot run on such nodes are recorded as such."""
    submitted = {job.trial for job in jobs.uncollected(run.folder)}
    selected = []
    for trial, planned in run.trials():
        if run.kept(trial) or trial.id in submitted:
            continue
        if planned.unsupported:
            store.write_record(run.folder / "trials" / trial.id, run.begun(trial, planned))
        else:
            selected.append((trial, planned))
    return selected[: run.max_trials]


def _submit(results: Path, job: Job, script: str, begun: Record | None = None) -> Job:
    """Submit one job; returned with its number. Raises HostError with Slurm's message, and then leaves nothing of it.

    `begun`: of a job of one trial, its record without an outcome. An earlier result is kept until there is another.
    """
    path, finished = jobs.prepare(results, job, script), results / "trials" / job.trial
    earlier = path.with_name(jobs.BEFORE)
    if begun:
        store.write_begun(path.parent, begun)
        if _has_result(finished):
            finished.rename(earlier)
    try:
        job = dataclasses.replace(job, id=jobs.submit(path))
    except HostError:
        if earlier.exists():
            earlier.rename(finished)
        shutil.rmtree(path.parent)
        raise
    jobs.write(results, job)
    return job


def _has_result(folder: Path) -> bool:
    """True if a trial's folder holds a result of it."""
    try:
        return store.read_trial(folder).status != "cancelled"
    except store.UnreadableRecord:
        return False


def _print_script(request: Request, job: Job, script: str) -> None:
    """The script alone on stdout, so that it can be sent to a file, edited and submitted with sbatch."""
    print(script, end="")
    folder = shlex.quote(str(jobs.folder_of(request.results.resolve(), job)))
    print(f"Nothing was submitted. To submit it by hand: mkdir -p {folder} && sbatch FILE", file=sys.stderr)


def _confirm(console: Console, submitted: Sequence[Job], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"jobs": [{"job": job.id, "trial": job.trial} for job in submitted]}))
    if not submitted:
        console.print("Every trial is finished or already has a job.")
    elif not submitted[0].trial:
        console.print(f"Submitted job {submitted[0].id}, which runs the whole study.")
    else:
        first, last = submitted[0].id, submitted[-1].id
        numbers = f"jobs {first} to {last}" if len(submitted) > 1 else f"job {first}"
        console.print(f"Submitted {len(submitted)} of the study's trials, each as its own job: {numbers}.")
    console.print("--status shows the jobs; --collect records those that have ended.")
