"""A study -> jobs: scripts made, handed to sbatch, and written down before and after."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling_study import provenance
from scaling_study.errors import HostError
from scaling_study.records import store
from scaling_study.records.store import Record
from scaling_study.settings import CHECKOUT
from scaling_study.slurm import controller, jobs, nodes, script
from scaling_study.slurm.jobs import Job
from scaling_study.slurm.options import Options
from scaling_study.study.plan import Planned
from scaling_study.sweep import Run
from scaling_study.trial import Trial

FRONT_DOOR = str(CHECKOUT / "run_sweep.py")


@dataclass(frozen=True)
class Request:
    """What a person asked for, and what the machine file adds."""

    study: str
    results: Path  # results/<study>
    options: Options
    setup: Sequence[str] = ()  # shell lines
    container: Sequence[str] = ()  # words before a command
    machine: Sequence[str] = ()  # words that name the machine file

    def script(self, job: Job, title: str, words: Sequence[str], options: Options) -> str:
        """A job's batch script; `words` follow the interpreter."""
        python = "python" if self.container else sys.executable  # a container has its own
        files = jobs.place(self.results.resolve(), job)
        command = [python, FRONT_DOOR, *words]
        return script.text(script.Job(title, job.name, Path.cwd(), files, command, options, self.setup, self.container))


def whole_sweep(request: Request, words: Sequence[str]) -> tuple[Job, str]:
    """The job that runs the ordinary sweep inside its allocation, `words` being its command line, and its script."""
    job = Job(jobs.new_name(request.study), jobs.next_sweep(request.results), provenance.utc_now())
    return job, request.script(job, f"{request.study}: all of its trials in one job", words, request.options)


def one_trial(request: Request, trial: Trial, planned: Planned) -> tuple[Job, str]:
    """The job that runs one trial, with what that trial needs, and its script."""
    measure = planned.measure.model_dump()
    job = Job(jobs.new_name(request.study), trial.id, provenance.utc_now(), trial=trial.id, measure=measure)
    options = nodes.resources(trial, request.options)
    words = ["--job", str(jobs.place(request.results.resolve(), job)), *request.machine]
    return job, request.script(job, f"{request.study}: trial {trial.id}", words, options)


def open_trials(run: Run) -> list[tuple[Trial, Planned]]:
    """The trials that are neither finished nor in a job. Those that cannot run on such nodes are recorded as such."""
    there = {job.trial for job in jobs.open_ones(run.folder)}
    wanted = []
    for trial, planned in run.trials():
        if run.kept(trial) or trial.id in there:
            continue
        if planned.unsupported:
            store.write_record(run.folder / "trials" / trial.id, run.begun(trial, planned))
        else:
            wanted.append((trial, planned))
    return wanted[: run.max_trials]


def hand_over(results: Path, job: Job, text: str, begun: Record | None = None) -> Job:
    """Submit one job. Raises HostError with Slurm's words, and then leaves nothing of it.

    `begun`: of a job of one trial, its record but for what comes of it. An earlier one is kept until there is another.
    """
    path, finished = jobs.prepare(results, job, text), results / "trials" / job.trial
    earlier = path.with_name(jobs.BEFORE)
    if begun:
        store.write_json(path.with_name(jobs.BEGUN), dataclasses.asdict(begun))
        if _worth_keeping(finished):
            finished.rename(earlier)
    try:
        job = dataclasses.replace(job, id=controller.submit(path))
    except HostError:
        if earlier.exists():
            earlier.rename(finished)
        shutil.rmtree(path.parent)
        raise
    jobs.write(results, job)
    return job


def _worth_keeping(finished: Path) -> bool:
    """Whether a trial's folder holds a result of it."""
    try:
        return store.read_trial(finished).status != "cancelled"
    except store.UnreadableRecord:
        return False
