"""--slurm: a study -> jobs. Scripts are written, submitted with sbatch, and noted on disk before and after."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console

from scaling_study import settings
from scaling_study.errors import HostError, StudyError
from scaling_study.hosts import hosts
from scaling_study.hosts.hosts import Host
from scaling_study.launch.attempts import Attempts
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.machine import Machine, this_machine
from scaling_study.models import FOLDERS
from scaling_study.processes import process
from scaling_study.records import results as results_folder
from scaling_study.records import store
from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT
from scaling_study.slurm import batch_script, collect, jobs
from scaling_study.slurm.batch_script import Options
from scaling_study.slurm.jobs import Job, SlurmUnavailable
from scaling_study.study.documents import Document
from scaling_study.study.machine_file import MachineFile
from scaling_study.study.plan import Plan, Planned
from scaling_study.study.study import Measure, Study
from scaling_study.study.support import Cluster, unsupported
from scaling_study.sweep import Run

# `run_sweep.py --job results/<study>/slurm/<name>`: what a job of one trial runs. It writes the trial's record.
#
# The trial is started, watched, timed out and judged by the same code as in a sweep, in the job itself: no submitter
# need be alive when it ends. Many such jobs share a results folder; each writes to its own trial's folder alone.

INTERRUPTED = 130


def run(folder: Path, cluster: Cluster) -> int:
    """Run the trial of the job whose folder this is; the exit code."""
    results = folder.parent.parent
    job, begun = jobs.read(folder / jobs.FILE), store.read_record(folder / store.BEGUN)
    trial, models = begun.trial, begun.environment.get(FOLDERS, "")
    cluster = dataclasses.replace(cluster, models=tuple(filter(None, models.split(os.pathsep))))
    measure, machine = Measure.model_validate(job.measure), this_machine()
    planned = Planned(trial, measure, unsupported(trial, machine, cluster))  # on what the job really got
    study = Study(begun.study, "weak", None, 0, measure, (), Document(Path(), "", {}, {}))
    sweep = Run(Plan(study, machine, (planned,), (), cluster=cluster), results, prune=False)
    with (
        process.Interruption() as interruption,
        SupervisorClient(results / "trials" / trial.id, interruption) as supervisor,
    ):
        record = sweep.run_trial(planned, Attempts(supervisor, cluster))
    print(f"{trial.id}: {record.status} {record.reason}" if record else f"{trial.id}: interrupted", flush=True)
    return 0 if record else INTERRUPTED


@dataclass(frozen=True)
class Request:
    """A submission as the command line asks for it."""

    results: Path  # results/<study>
    file: MachineFile
    text: str = ""  # the options of sbatch
    per_trial: bool = False
    print_only: bool = False
    machine: str = ""  # the machine file, as named on the command line

    @cached_property
    def options(self) -> Options:
        """Raises StudyError for options that Slurm would refuse or misread."""
        return batch_script.parse_options(self.text, self.file.slurm, f"--machine {self.machine}")

    def nodes(self, here: Machine) -> tuple[Machine, tuple[Host, ...]]:
        """The machine that a node of the partition is, and every node; `here` where a script is only printed and Slurm
        does not answer. Raises HostError."""
        try:
            listing = jobs.list_nodes(self.options.get("nodelist", ""))
        except SlurmUnavailable:
            if self.print_only:
                return here, ()
            raise
        nodes = batch_script.parse_nodes(listing, self.options.get("partition", ""))
        machine = batch_script.node_machine(nodes, self.options, here)
        return machine, tuple(Host(node.name, node.cores) for node in nodes)

    def script(self, job: Job, what: str, words: Sequence[str], options: Options) -> str:
        """A job's batch script; `words` follow run_sweep.py."""
        container = shlex.split(self.file.container or "")
        python = "python" if container else sys.executable  # a container has its own
        command = [*container, python, str(CHECKOUT / "run_sweep.py"), *words]
        files, title = jobs.folder_of(self.results.resolve(), job), f"{self.results.name}: {what}"
        return batch_script.batch_script(title, job.name, Path.cwd(), files, command, options, self.file.setup)


def submit_sweep(console: Console, request: Request, words: Sequence[str], as_json: bool) -> None:
    """One job that runs the ordinary sweep inside its allocation, with `words` as its command line."""
    job = Job(jobs.new_name(request.results.name), jobs.next_sweep(request.results), settings.utc_now())
    script = request.script(job, "all of its trials in one job", words, request.options)
    if request.print_only:
        return _print_script(request, job, script)
    refuse_live_jobs(request.results)  # before the lock, which a sweep that runs in its job holds
    with results_folder.locked(request.results):
        job = _submit(request.results, job, script)
    _confirm(console, [job], as_json)


def submit_trials(console: Console, request: Request, run: Run, as_json: bool) -> None:
    """A job for each trial that is neither finished nor in one.

    Raises StudyError where trials are to share launches.
    """
    if any(planned.trial.warm for planned in run.plan.configurations):
        raise StudyError(["measure: interleave is true, but a job for each trial shares no launch: interleave: false"])
    if request.print_only:
        trials = list(run.trials())
        able = next((planned for planned in trials if not planned.unsupported), trials[0])
        return _print_script(request, *_trial_job(request, able))
    collect.record_ended_jobs(request.results)
    submitted = []
    with results_folder.locked(request.results):
        run.open({job.trial for job in jobs.uncollected(request.results)})
        for planned in _trials_to_submit(run):
            job, script = _trial_job(request, planned)
            submitted.append(_submit(request.results, job, script, run.begun(planned)))
    _confirm(console, submitted, as_json)


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


def _trial_job(request: Request, planned: Planned) -> tuple[Job, str]:
    """The job that runs one trial, with what that trial needs, and its script."""
    trial, name, measure = planned.trial, jobs.new_name(request.results.name), planned.measure.model_dump()
    job = Job(name, trial.id, settings.utc_now(), trial=trial.id, measure=measure)
    words = ["--job", str(jobs.folder_of(request.results.resolve(), job))]
    words += ["--machine", request.machine] if request.machine else []
    return job, request.script(job, f"trial {trial.id}", words, batch_script.trial_options(trial, request.options))


def _trials_to_submit(run: Run) -> list[Planned]:
    """The trials that are neither finished nor in a job. Those that cannot run on such nodes are recorded as such."""
    submitted = {job.trial for job in jobs.uncollected(run.folder)}
    selected = []
    for planned in run.trials():
        trial = planned.trial
        if run.kept(planned) or trial.id in submitted:
            continue
        if planned.unsupported:
            store.write_record(run.folder / "trials" / trial.id, run.begun(planned))
        else:
            selected.append(planned)
    return selected[: run.max_trials]


def _submit(results: Path, job: Job, script: str, begun: Record | None = None) -> Job:
    """Submit one job; returned with its number. Raises HostError with Slurm's message, and then leaves nothing of it.

    `begun`: of a job of one trial, its record without an outcome. An earlier result is kept until there is another.
    """
    path, finished = jobs.prepare(results, job, script), results / "trials" / job.trial
    earlier = path.with_name(jobs.BEFORE)
    if begun:
        store.write_begun(path.parent, begun)
        with contextlib.suppress(store.UnreadableRecord):
            if store.read_trial(finished).status != "cancelled":
                finished.rename(earlier)
                results_folder.carry(earlier, finished, store.OF_A_TRAINING if begun.trial.trained else ())
    try:
        job = dataclasses.replace(job, id=jobs.submit(path))
    except HostError:
        if earlier.exists():
            results_folder.restore(earlier, finished)
        shutil.rmtree(path.parent)
        raise
    jobs.write(results, job)
    return job


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
