"""Jobs that have ended -> records of the trials that they left without one.

    trials/<id>/begun.json    a driver inside a job writes it before it starts a trial: the record, but for its end
    slurm/<id>/begun.json     the same of a trial whose job may never have started

Whoever collects holds the results folder, unless nothing has ended: a sweep that still runs in its job holds it too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling_study import provenance
from scaling_study.records import results, store, validation
from scaling_study.records.outcome import Outcome
from scaling_study.records.store import Record
from scaling_study.slurm import controller, jobs, verdict
from scaling_study.slurm.jobs import Job
from scaling_study.slurm.states import State
from scaling_study.trial import Trial


@dataclass(frozen=True)
class Seen:
    """A job, and what is known of it now."""

    job: Job
    state: State | None  # None: Slurm has forgotten it, or never knew it
    ended: bool


@dataclass(frozen=True)
class Open:
    """A trial that was begun, or was to be, and has no record."""

    folder: Path
    begun: Record


def look(folder: Path) -> list[Seen]:
    """Every job that is not collected yet, as Slurm and its own last word have it. Raises NoAnswer."""
    known = [job if job.id else _numbered(folder, job) for job in jobs.open_ones(folder)]
    states = controller.look([job.id for job in known if job.id])
    return [_seen(folder, job, states) for job in known]


def collect(folder: Path) -> list[Record]:
    """Make records of what has ended; returns those that are new, and those that jobs have left. Raises HostError."""
    if not any(seen.ended for seen in look(folder)):
        return []
    with results.locked(folder):
        ended = [seen for seen in look(folder) if seen.ended]  # again: somebody may have been submitting just now
        left = [seen.job.trial for seen in ended if seen.job.trial and _finished(folder / "trials" / seen.job.trial)]
        new = [_record(folder, one, seen) for seen in ended for one in _open(folder, seen.job)]
        for seen in ended:
            jobs.write(folder, dataclasses.replace(seen.job, collected_at=provenance.utc_now()))
    return [*_read(folder, left), *filter(None, new)]


def _read(folder: Path, trials: Sequence[str]) -> Iterator[Record]:
    for trial in trials:
        with contextlib.suppress(store.UnreadableRecord):  # not believed: the next run does it again
            yield store.read_trial(folder / "trials" / trial)


def _numbered(folder: Path, job: Job) -> Job:
    """A job whose submitter died before it could write down its number."""
    if number := controller.number(job.name):
        job = dataclasses.replace(job, id=number)
        jobs.write(folder, job)
    return job


def _seen(folder: Path, job: Job, states: Mapping[str, State]) -> Seen:
    state = states.get(job.id)
    if state and state.name != job.name:  # a controller that lost its memory has given the number again
        state = None
    return Seen(job, state, verdict.ended(state, jobs.word(folder, job), time.time()))


def _open(folder: Path, job: Job) -> Iterator[Open]:
    """The trials that this job has left without a record."""
    trials = folder / "trials"
    if job.trial:
        found = [(trials / job.trial, jobs.begun(trials / job.trial) or jobs.begun(jobs.place(folder, job)))]
    else:
        begun_ones = ((path.parent, jobs.begun(path.parent)) for path in sorted(trials.glob("*/begun.json")))
        found = [(there, one) for there, one in begun_ones if one and _in_job(one, job)]
    for there, begun in found:
        if begun and begun.id == there.name and not _finished(there):
            yield Open(there, begun)


def _in_job(begun: Record, job: Job) -> bool:
    return (begun.job.get("job"), begun.job.get("name")) == (job.id, job.name)


def _finished(folder: Path) -> bool:
    """Whether it has a record. A folder that is shared over a network is only sure to be seen anew when listed."""
    try:
        return "record.json" in os.listdir(folder)
    except OSError:
        return False


def _record(folder: Path, one: Open, seen: Seen) -> Record | None:
    """Finish a trial that nobody else will; None where an earlier result of it takes its place again."""
    job = seen.job
    word, output = jobs.word(folder, job), jobs.output(folder, job)
    result = _measured(one) or verdict.of(job.id or job.name, seen.state, word, output, own=bool(job.trial))
    for earlier in (jobs.place(folder, job) / jobs.BEFORE, results.aside_of(one.folder)):
        if result.status == "cancelled" and _finished(earlier):
            shutil.rmtree(one.folder, ignore_errors=True)
            earlier.rename(one.folder)
            return None
    record = dataclasses.replace(
        one.begun, job=one.begun.job or {"job": job.id, "name": job.name}, status=result.status, reason=result.reason,
        error=result.error, notes=list(result.notes), ranks=list(result.ranks),
    )  # fmt: skip
    one.folder.mkdir(parents=True, exist_ok=True)
    store.write_record(one.folder, record)
    return record


def _measured(one: Open) -> Outcome | None:
    """All ranks' whole reports, of a job that ended between the measurement and its record."""
    try:
        trial = Trial.from_dict({**one.begun.trial, "window": one.begun.window})
        ranks = tuple(store.read_ranks(one.folder, trial.processes))
    except (store.UnreadableRecord, KeyError, TypeError):
        return None
    if trial.find or validation.first(trial, ranks):  # a gate, or a search, is more than its last measurement
        return None
    return Outcome("ok", ranks=ranks, notes=("complete; its job ended before it was recorded",))
