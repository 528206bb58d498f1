"""--status and --collect: the state of every job, and records for trials that an ended job left without one.

    trials/<id>/begun.json    a driver writes it before it starts a trial: the record without an outcome, with the job
    slurm/<id>/begun.json     the same of a trial whose job may never have started

--collect locks the results folder, unless no job has ended: a sweep that still runs in its job holds it too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaling_study import settings
from scaling_study.records import outcome, results, store
from scaling_study.records.outcome import Outcome
from scaling_study.records.schema import Record
from scaling_study.slurm import jobs
from scaling_study.slurm.jobs import Job, JobState, SlurmUnavailable


@dataclass(frozen=True)
class ObservedJob:
    """A job, and what is known of it now."""

    job: Job
    state: JobState | None  # None: Slurm has forgotten it, or never knew it
    ended: bool


def observe_jobs(folder: Path) -> list[ObservedJob]:
    """The jobs that are not collected yet, each with its state now. Raises SlurmUnavailable."""
    pending = list(jobs.uncollected(folder))
    for at, job in enumerate(pending):
        if not job.id and (number := jobs.job_number(job.name)):  # its submitter died before it could write it down
            pending[at] = dataclasses.replace(job, id=number)
            jobs.write(folder, pending[at])
    reported, observed = jobs.job_states([job.id for job in pending if job.id]), []
    for job in pending:
        state = reported.get(job.id)
        if state and state.name != job.name:  # a controller that lost its memory has given the number again
            state = None
        ended = jobs.has_ended(state, jobs.script_exit(folder, job), time.time())
        observed.append(ObservedJob(job, state, ended))
    return observed


def record_ended_jobs(folder: Path) -> list[Record]:
    """Write records for what has ended; returns these, and those that jobs have left themselves. Raises HostError."""
    if not any(observed.ended for observed in observe_jobs(folder)):
        return []
    with results.locked(folder):
        ended = [observed for observed in observe_jobs(folder) if observed.ended]  # again: one may just be submitted
        trials = [folder / "trials" / observed.job.trial for observed in ended if observed.job.trial]
        recorded = [trial for trial in trials if _has_record(trial)]
        new = [
            _write_record(folder, trial, begun, observed)
            for observed in ended
            for trial, begun in _unrecorded_trials(folder, observed.job)
        ]
        for observed in ended:
            jobs.write(folder, dataclasses.replace(observed.job, collected_at=settings.utc_now()))
    records = []
    for trial in recorded:
        with contextlib.suppress(store.UnreadableRecord):  # not believed: the next run repeats it
            records.append(store.read_trial(trial))
    return [*records, *filter(None, new)]


def _unrecorded_trials(folder: Path, job: Job) -> Iterator[tuple[Path, Record]]:
    """The folders of the trials that this job has left without a record, each with the record as it was begun."""
    trials = folder / "trials"
    if job.trial:
        own = trials / job.trial
        begun = jobs.begun_record(own)
        here = begun if begun and _ran_in(job, begun) else jobs.begun_record(jobs.folder_of(folder, job))
        candidates = [(own, here)]
    else:
        every = ((path.parent, jobs.begun_record(path.parent)) for path in sorted(trials.glob(f"*/{store.BEGUN}")))
        candidates = [(trial, begun) for trial, begun in every if begun and _ran_in(job, begun)]
    for trial, begun in candidates:
        if begun and begun.id == trial.name and not _has_record(trial):
            yield trial, begun


def _ran_in(job: Job, begun: Record) -> bool:
    return (begun.job.get("job"), begun.job.get("name")) == (job.id, job.name)


def _has_record(folder: Path) -> bool:
    """True if the trial has a record. Only a listing is sure to show a folder on a network file system as it is."""
    try:
        return "record.json" in os.listdir(folder)
    except OSError:
        return False


def _write_record(folder: Path, trial: Path, begun: Record, observed: ObservedJob) -> Record | None:
    """Finish a trial whose job has ended; None where an earlier result of it takes its place again."""
    job = observed.job
    result = _complete_measurement(trial, begun) or jobs.trial_outcome(
        job.id or job.name,
        observed.state,
        jobs.script_exit(folder, job),
        jobs.output_tail(folder, job),
        single_trial=bool(job.trial),
    )
    for earlier in (jobs.folder_of(folder, job) / jobs.BEFORE, results.aside_of(trial)):
        if result.status == "cancelled" and _has_record(earlier):
            results.restore(earlier, trial)
            return None
    record = dataclasses.replace(
        begun,
        job=begun.job or {"job": job.id, "name": job.name},
        status=result.status,
        reason=result.reason,
        error=result.error,
        notes=list(result.notes),
        ranks=list(result.ranks),
    )
    trial.mkdir(parents=True, exist_ok=True)
    store.write_record(trial, record)
    return record


def _complete_measurement(folder: Path, begun: Record) -> Outcome | None:
    """All ranks' whole reports, of a job that ended between the measurement and its record."""
    trial = begun.trial
    try:
        ranks = tuple(store.read_ranks(folder, trial.processes))
    except (store.UnreadableRecord, KeyError):  # KeyError: of a framework that is not here
        return None
    if trial.find or outcome.first_problem(trial, ranks):  # a gate, or a search, is more than its last measurement
        return None
    return Outcome("ok", ranks=ranks, notes=("complete; its job ended before it was recorded",))


def show_status(console: Console, folder: Path, as_json: bool) -> bool:
    """Show every job; False where Slurm did not answer, so that its part is missing."""
    observed, unavailable = {}, ""
    try:
        observed = {known.job.name: known for known in observe_jobs(folder)}
    except SlurmUnavailable as error:
        unavailable = str(error)
    rows = [_status_row(folder, job, observed.get(job.name)) for job in jobs.all_jobs(folder)]
    if as_json:
        print(json.dumps(rows))
        return not unavailable
    if not rows:
        console.print(f"No Slurm job was submitted into {escape(str(folder))}.")
        return True
    table = Table("job", "state", "reason", "nodes", "time", "trial", box=None, header_style="bold")
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        if not row["collected"]:
            trial = row["trial"] or "the whole study"
            cells = (row["job"] or "?", row["state"], row["reason"], row["nodes"], row["elapsed"], trial)
            table.add_row(*(escape(str(cell)) for cell in cells))
    if table.row_count:
        console.print(table)
    if statuses := Counter(row["status"] for row in rows if row["collected"] and row["trial"]):
        console.print(f"Collected: {', '.join(f'{count} {status}' for status, count in statuses.items())}.")
    if finished := len(list((folder / "trials").glob("*/record.json"))):
        console.print(f"Finished in {escape(str(folder))}: {_count_of_trials(finished)}.")
    if unavailable:
        console.print(f"[bold red]Slurm does not report their state:[/] {escape(unavailable)}", soft_wrap=True)
    elif any(str(row["state"]).startswith("ended") for row in rows):
        console.print("To record the jobs that have ended: the same command with --collect instead of --status.")
    return not unavailable


def show_collected(console: Console, folder: Path) -> list[Record]:
    """Record what has ended, and show it."""
    new = record_ended_jobs(folder)
    for record in new:
        job = record.job.get("job", "")
        reason = f": {record.reason}" if record.reason else ""
        console.print(f"job {job}  {record.id}  {record.status}{escape(reason)}", soft_wrap=True)
    live = len(list(jobs.uncollected(folder)))
    waiting = "1 job is pending or running" if live == 1 else f"{live} jobs are pending or running"
    console.print(f"Collected {_count_of_trials(len(new))}; {waiting}." if new or live else "Nothing to collect.")
    return new


def _count_of_trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"


def _status_row(folder: Path, job: Job, observed: ObservedJob | None) -> dict[str, object]:
    """One job, for --json."""
    state, status = observed.state if observed else None, ""
    if job.collected_at and job.trial:
        with contextlib.suppress(store.UnreadableRecord):
            status = store.read_trial(folder / "trials" / job.trial).status
    recorded = bool(job.trial) and (folder / "trials" / job.trial / "record.json").exists()
    if job.collected_at or recorded:
        shown = "finished"
    elif observed is None:
        shown = "unknown"
    elif observed.ended:
        shown = f"ended: {state.state if state and state.ended else 'forgotten'}"
    else:
        shown = "queued" if state and state.waits else "running"
    return {
        "job": job.id,
        "name": job.name,
        "trial": job.trial,
        "state": shown,
        "reason": state.reason if state else "",
        "nodes": state.nodes if state else "",
        "elapsed": state.elapsed if state else "",
        "submitted_at": job.submitted_at,
        "collected": bool(job.collected_at),
        "status": status,
    }
