"""Submitted jobs: on disk, and as Slurm sees them through sbatch, squeue, sacct, sinfo."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling_study.errors import HostError
from scaling_study.records import outcome, store
from scaling_study.records.outcome import Outcome
from scaling_study.records.schema import Record
from scaling_study.trial import STRICT
from scaling_study.variables import JOB

TIMEOUT_SECONDS = 60.0  # for one answer
JOBS_PER_QUERY = 500  # command lines have a maximum length


class SlurmUnavailable(HostError):
    """A command of Slurm is missing, failed, or did not answer."""


def submit(script: Path) -> str:
    """Submit a script with sbatch; Slurm's number of the job. Raises HostError with Slurm's own message."""
    return _output("sbatch", "--parsable", str(script)).strip().partition(";")[0]


def job_number(name: str) -> str:
    """The number of the job with this name; empty if Slurm knows none."""
    return max(parse_squeue(_squeue("--name", name)), key=int, default="")


def job_states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Job number -> JobState of those that Slurm has not forgotten. Raises SlurmUnavailable."""
    known: dict[str, JobState] = {}
    for start in range(0, len(jobs), JOBS_PER_QUERY):
        known |= parse_squeue(_squeue("--jobs", ",".join(jobs[start : start + JOBS_PER_QUERY])))
    for completion in ([], ["--completion"]):  # the database, else the file of ended jobs; most have one or none
        forgotten = [job for job in jobs if job not in known]
        for start in range(0, len(forgotten), JOBS_PER_QUERY):
            batch = ",".join(forgotten[start : start + JOBS_PER_QUERY])
            known |= parse_sacct(_sacct([*completion, "--jobs", batch]))
    return known


def list_nodes(nodelist: str = "") -> str:
    """One line a node and partition: `partition|node|cpus|MB|gres`, the default partition with a star."""
    only = ["--nodes", nodelist] if nodelist else []
    return _output("sinfo", "--noheader", "--Node", *only, "--format", "%P|%N|%c|%m|%G")


def _squeue(*selection: str) -> str:
    columns = ",".join(f"{column}|" for column in SQUEUE)
    try:
        return _output("squeue", "--noheader", "--states", "all", "--Format", columns, *selection)
    except SlurmUnavailable as error:
        if "Invalid job id" in str(error):  # its error where it has forgotten the only job asked for
            return ""
        raise


def _sacct(selection: Sequence[str]) -> str:
    columns = ",".join(SACCT)
    try:
        return _output("sacct", "--noheader", "--allocations", "--parsable", "--format", columns, *selection)
    except SlurmUnavailable:  # no accounting here, or none that can be read
        return ""


def _output(*command: str) -> str:
    """The output of a command. Raises SlurmUnavailable with its error message."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k in JOB.but}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmUnavailable(f"{command[0]} is not installed here: run this on a machine of the cluster") from None
    except subprocess.TimeoutExpired:
        raise SlurmUnavailable(f"{command[0]} did not answer for {TIMEOUT_SECONDS:.0f} s; try again later") from None
    if done.returncode:
        messages = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if line.strip()]
        raise SlurmUnavailable(f"{command[0]}: {'; '.join(messages[:3]) or f'exit code {done.returncode}'}")
    return done.stdout


# Slurm's reports of jobs, and the outcome of a trial whose job left no record. Pure.
#
#     squeue -O "JobID:32|,..."   while the controller remembers: 5 minutes after a job's end (MinJobAge), by default
#     sacct -p -o JobIDRaw,...    for ever, where there is accounting; `sacct -c` where jobs' ends are kept in a file
#     exit.json                   the batch script's own exit status, for when Slurm has forgotten or never knew
#
# Both commands are asked for columns of our own choice, none of which can hold the character between them. Slurm's
# report counts first: only it knows why it ended a job.

WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING")
SQUEUE = ("JobID:32", "Name:200", "State:32", "exit_code:16", "Reason:200", "NodeList:400", "TimeUsed:32")
SACCT = ("JobIDRaw", "JobName", "State", "ExitCode", "NodeList", "Elapsed")
EMPTY_CELLS = ("", "None", "(null)", "None assigned", "N/A")
LINGER_SECONDS = 300.0  # after a script has ended, until a Slurm that still reports it running is no longer believed
OVER_MEMORY = ("Exceeded job memory limit", "Exceeded step memory limit", "oom-kill event", "oom_kill event")
SLURM_DAEMON = "slurmstepd"  # begins each line that Slurm adds to a job's output


@dataclass(frozen=True)
class JobState:
    """One job, as Slurm reports it."""

    job: str
    name: str
    state: str  # Slurm's own word: PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT, ...
    code: int = 0  # that the batch script exited with
    signal: int = 0  # that killed it
    reason: str = ""  # why it waits, or why it ended; Slurm's own word
    nodes: str = ""
    elapsed: str = ""  # as Slurm writes it: 2:03

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def ended(self) -> bool:
        return self.state not in (*WAITING, *RUNNING)


@dataclass(frozen=True)
class ScriptExit:
    """The end of a batch script, as its own trap has written it to exit.json; a killed script leaves none."""

    __pydantic_config__ = STRICT | {"extra": "forbid"}

    job: str  # Slurm's number of the job
    node: str
    stage: str  # setup or study
    code: int  # exit code
    asked: str  # TERM, if it received one
    at: int  # Unix seconds


def parse_squeue(text: str) -> dict[str, JobState]:
    """Job number -> JobState, from `squeue -h -t all -O <SQUEUE, each with | behind it>`."""
    states = {}
    for job, name, state, exit_status, reason, nodes, elapsed in _rows(text, len(SQUEUE)):
        status = _number(exit_status)  # as wait(2) gives it
        states[job] = JobState(job, name, state, status >> 8, status & 0x7F, reason, nodes, elapsed)
    return states


def parse_sacct(text: str) -> dict[str, JobState]:
    """Job number -> JobState, from `sacct -n -X -p -o <SACCT>`. Of `CANCELLED by 1000` the end is the reason."""
    states = {}
    for job, name, state_and_reason, exit_code, nodes, elapsed in _rows(text, len(SACCT)):
        state, _, reason = state_and_reason.partition(" ")
        code, _, signal = exit_code.partition(":")
        states[job] = JobState(job, name, state, _number(code), _number(signal), reason, nodes, elapsed)
    return states


def _rows(text: str, columns: int) -> Iterator[list[str]]:
    """The cells of each line that has as many as it should; every cell ends with |."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.rstrip().removesuffix("|").split("|")]
        if len(cells) == columns:
            yield ["" if cell in EMPTY_CELLS else cell for cell in cells]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def has_ended(state: JobState | None, script: ScriptExit | None, now: float) -> bool:
    """True if a submitted job has ended, `now` in Unix seconds. One that Slurm has forgotten has."""
    if state is None or state.ended:
        return True
    return script is not None and now - script.at > LINGER_SECONDS


def trial_outcome(
    job: str, state: JobState | None, script: ScriptExit | None, output: str, single_trial: bool
) -> Outcome:
    """The outcome of a trial that job number `job` was running, or was to run.

    `single_trial`: the job was for this trial alone; otherwise the trial was running when its sweep's job ended, and
    time limits and cancelling say nothing about it. `output`: the end of the job's output, Slurm's own lines included.
    """
    status, reason = _status_and_reason(job, state, script, output, single_trial)
    return Outcome(status, reason, output)


def _status_and_reason(
    job: str, state: JobState | None, script: ScriptExit | None, output: str, single_trial: bool
) -> tuple[str, str]:
    if state is None or not state.ended:
        return _by_script_exit(job, script)
    after = f" after {state.elapsed}" if state.elapsed else ""
    match state.state:
        case "PREEMPTED":
            return "cancelled", f"preempted: job {job}{after}"
        case "TIMEOUT" | "DEADLINE" if single_trial:
            return "timeout", f"time limit: job {job} was ended{after}"
        case "TIMEOUT" | "DEADLINE":
            return "cancelled", f"time limit: job {job} was ended{after}, while this trial ran"
        case "CANCELLED" | "REVOKED":
            who = f" {state.reason}" if state.reason.startswith("by ") else ""
            return "cancelled", f"cancelled: job {job}{who}{after if state.nodes else ', before it started'}"
        case "NODE_FAIL" | "BOOT_FAIL":
            return "failed", f"node_failed: {state.nodes or 'a node'}, job {job}{after}"
        case "OUT_OF_MEMORY":
            return "oom", f"job {job} exceeded its memory limit"
        case "COMPLETED":
            return "failed", f"job {job} completed but left no record"
    said = [line for line in output.splitlines() if line.startswith(SLURM_DAEMON)]
    over_memory = any(sign in line for line in said for sign in OVER_MEMORY)
    if state.signal == 9 and not script and over_memory:  # without cgroups Slurm reports it only there
        return "oom", f"job {job} exceeded its memory limit"
    if not state.nodes:
        return "failed", f"job {job} could not start: {state.reason or state.state}"
    if state.signal and not script:
        return "failed", f"job {job} was killed by signal {state.signal}{after}"
    return _by_script_exit(job, script) if script else ("failed", f"job {job} ended with exit code {state.code}{after}")


def _by_script_exit(job: str, script: ScriptExit | None) -> tuple[str, str]:
    if script is None:
        return "failed", f"vanished: Slurm no longer knows job {job}, and its script left no exit status"
    if script.asked:
        return "cancelled", f"job {job} received SIG{script.asked}; Slurm no longer reports why"
    if script.stage == "setup":
        return "failed", f"setup: the machine file's lines ended with exit code {script.code}"
    return "failed", f"job {job} ended with exit code {script.code} and left no record"


# Submitted jobs on disk: results/<study>/slurm/<name>/, one folder a job.
#
#     job.json     what was submitted (`Job`)      job.sh      the batch script
#     exit.json    how it ended (`ScriptExit`)     output.txt  what setup, driver and Slurm itself printed
#     begun.json   of a job of one trial: its record without an outcome
#
# `name` is the trial's id for a job of one trial, sweep-1, sweep-2, ... for a job that runs a whole sweep. job.json is
# written before sbatch is called and again with the number that Slurm gave: a submitter that dies in between loses no
# job, for its name in Slurm is unique.

FOLDER = "slurm"  # in results/<study>
OUTPUT, SCRIPT, FILE, EXIT = "output.txt", "job.sh", "job.json", "exit.json"
BEFORE = "before"  # in a job's folder: its trial's earlier folder, moved there when the trial was submitted again


@dataclass(frozen=True)
class Job:
    """One submission."""

    __pydantic_config__ = STRICT | {"extra": "forbid"}

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
    job = store.parsed(store.contents(path), Job, path)
    if job.folder != path.parent.name or job.trial not in ("", job.folder):
        raise store.UnreadableRecord(f"{path} is not whole: it is that of another job")
    return job


def all_jobs(results: Path) -> list[Job]:
    """The jobs of a results folder, the oldest first. Raises HostError for one that is broken."""
    try:
        jobs = [read(path) for path in (results / FOLDER).glob(f"*/{FILE}")]
    except store.UnreadableRecord as error:
        raise HostError(f"{error}; move its folder away; squeue --me lists the jobs that are still alive") from error
    return sorted(jobs, key=lambda job: (job.submitted_at, job.folder))


def uncollected(results: Path) -> Iterator[Job]:
    """Those of which something may still be learnt."""
    return (job for job in all_jobs(results) if not job.collected_at)


def begun_record(folder: Path) -> Record | None:
    """A trial's record without an outcome, as its driver or its submitter left it; None if there is none."""
    try:
        return store.read_record(folder / store.BEGUN)
    except store.UnreadableRecord:
        return None


def script_exit(results: Path, job: Job) -> ScriptExit | None:
    """The end of the job's batch script; None if its exit.json is missing, not whole, or another job's."""
    try:
        path = folder_of(results, job) / EXIT
        ended = store.parsed(store.contents(path), ScriptExit, path)
    except store.UnreadableRecord:
        return None
    return ended if ended.job == job.id else None


def output_tail(results: Path, job: Job) -> str:
    """The end of the job's output, for a person; Slurm's own lines in it tell a kill for memory from others."""
    return outcome.tail(folder_of(results, job) / OUTPUT)
