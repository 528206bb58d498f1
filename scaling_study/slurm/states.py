"""What Slurm reports of jobs, and what that means for a trial whose job left no record. Pure.

    squeue -O "JobID:32|,..."   while the controller remembers: 5 minutes after a job's end (MinJobAge), by default
    sacct -p -o JobIDRaw,...    for ever, where there is accounting; `sacct -c` where jobs' ends are kept in a file
    exit.json                   the batch script's own exit status, for when Slurm has forgotten or never knew

Both commands are asked for columns of our own choice, none of which can hold the character between them. Slurm's report
counts first: only it knows why it ended a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scaling_study.records.outcome import Outcome

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
    def runs(self) -> bool:
        return self.state in RUNNING

    @property
    def ended(self) -> bool:
        return not (self.waits or self.runs)


@dataclass(frozen=True)
class ScriptExit:
    """How a batch script ended, as its own trap has written it to exit.json; a killed script leaves none."""

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


# --- what it means for a trial


def has_ended(state: JobState | None, script: ScriptExit | None, now: float) -> bool:
    """Whether a submitted job has ended, `now` in Unix seconds. One that Slurm has forgotten has."""
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
    if state.signal == 9 and not script and _over_memory(output):  # without cgroups Slurm reports it only there
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


def _over_memory(output: str) -> bool:
    slurm_lines = (line for line in output.splitlines() if line.startswith(SLURM_DAEMON))
    return any(sign in line for line in slurm_lines for sign in OVER_MEMORY)
