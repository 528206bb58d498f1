"""Submitted jobs on disk: results/<study>/slurm/<name>/, one folder a job.

    job.json     what was submitted (`Job`)      job.sh      the batch script
    exit.json    how it ended (`ScriptExit`)     output.txt  what setup, driver and Slurm itself printed
    begun.json   of a job of one trial: its record without an outcome

`name` is the trial's id for a job of one trial, sweep-1, sweep-2, ... for a job that runs a whole sweep. job.json is
written before sbatch is called and again with the number that Slurm gave: a submitter that dies in between loses no
job, for its name in Slurm is unique.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling_study.errors import HostError
from scaling_study.records import outcome, reading, store
from scaling_study.records.store import Record
from scaling_study.slurm.states import ScriptExit

FOLDER = "slurm"  # in results/<study>
OUTPUT, SCRIPT, FILE, BEGUN, EXIT = "output.txt", "job.sh", "job.json", "begun.json", "exit.json"
BEFORE = "before"  # in a job's folder: its trial's earlier folder, moved there when the trial was submitted again


@dataclass(frozen=True)
class Job:
    """One submission."""

    name: str  # in Slurm; unique, so a number that Slurm gives again later is not mistaken for ours
    folder: str  # name of its folder
    submitted_at: str  # ISO 8601, UTC
    id: str = ""  # Slurm's number; empty: sbatch had not answered
    trial: str = ""  # id of the one trial it is for; empty: a whole sweep
    measure: dict[str, Any] = field(default_factory=dict)  # how that trial is measured
    collected_at: str = ""  # ISO 8601, UTC: nothing more is to be learnt of it


def new_name(study: str) -> str:
    """A job's name, of letters that every tool of Slurm leaves alone."""
    return f"{study}.{secrets.token_hex(4)}"


def next_sweep(results: Path) -> str:
    """`sweep-1`, or the next one that is free."""
    taken = {path.name for path in (results / FOLDER).glob("sweep-*")}
    return next(name for number in range(1, len(taken) + 2) if (name := f"sweep-{number}") not in taken)


def folder_of(results: Path, job: Job) -> Path:
    return results / FOLDER / job.folder


def write(results: Path, job: Job) -> None:
    store.write_json(folder_of(results, job) / FILE, dataclasses.asdict(job))


def prepare(results: Path, job: Job, script: str) -> Path:
    """An empty folder with the job's script and job.json; returns the script's path."""
    folder = folder_of(results, job)
    shutil.rmtree(folder, ignore_errors=True)
    write(results, job)
    path = folder / SCRIPT
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return path


def read(path: Path) -> Job:
    """Raises UnreadableRecord for what is no job.json of ours."""
    try:
        job = Job(**reading.load(path))
    except TypeError as error:
        raise reading.UnreadableRecord(f"{path} is not whole: {error}") from error
    if (wrong := reading.misfit(job)) or job.folder != path.parent.name or job.trial not in ("", job.folder):
        raise reading.UnreadableRecord(f"{path} is not whole: {wrong or 'it is that of another job'}")
    return job


def all_jobs(results: Path) -> list[Job]:
    """Every job of a results folder, the oldest first. Raises HostError for one that is broken."""
    try:
        jobs = [read(path) for path in (results / FOLDER).glob(f"*/{FILE}")]
    except reading.UnreadableRecord as error:
        raise HostError(f"{error}; move its folder away; squeue --me lists the jobs that are still alive") from error
    return sorted(jobs, key=lambda job: (job.submitted_at, job.folder))


def uncollected(results: Path) -> Iterator[Job]:
    """Those of which something may still be learnt."""
    return (job for job in all_jobs(results) if not job.collected_at)


def begun_record(folder: Path) -> Record | None:
    """A trial's record without an outcome, as its driver or its submitter left it; None if there is none."""
    try:
        return store.read_record(folder / BEGUN)
    except store.UnreadableRecord:
        return None


def script_exit(results: Path, job: Job) -> ScriptExit | None:
    """How the job's batch script ended; None if its exit.json is missing, not whole, or another job's."""
    try:
        ended = ScriptExit(**reading.load(folder_of(results, job) / EXIT))
    except (reading.UnreadableRecord, TypeError):
        return None
    return ended if not reading.misfit(ended) and ended.job == job.id else None


def output_tail(results: Path, job: Job) -> str:
    """The end of the job's output, for a person; Slurm's own lines in it tell a kill for memory from others."""
    return outcome.tail(folder_of(results, job) / OUTPUT)
