"""What came of a trial whose job ended before it could be recorded: Slurm's word and the script's -> an Outcome. Pure.

Slurm's word comes first: only it knows why it asked a job to end. When it has forgotten, the script's own last word
has to do, and when there is none either, that is what is said.
"""

from __future__ import annotations

from scaling_study.records.outcome import Outcome
from scaling_study.slurm.states import State
from scaling_study.slurm.words import Word

LINGER_SECONDS = 300.0  # after a script's last word, until a Slurm that still sees it run is no longer believed
OVER_MEMORY = ("Exceeded job memory limit", "Exceeded step memory limit", "oom-kill event", "oom_kill event")
SLURMS_OWN = "slurmstepd"  # begins each line that Slurm adds to a job's output


def ended(state: State | None, word: Word | None, now: float) -> bool:
    """Whether a job that was submitted has ended, `now` in Unix seconds. One that Slurm has forgotten has."""
    if state is None or state.ended:
        return True
    return word is not None and now - word.at > LINGER_SECONDS


def of(job: str, state: State | None, word: Word | None, output: str, own: bool) -> Outcome:
    """The outcome of a trial that job number `job` was running, or was to run.

    `own`: the job was for this trial alone; otherwise it was the one that was running when its sweep's job ended, and
    time limits and cancelling say nothing about it. `output`: the end of what the job printed, Slurm's words included.
    """
    status, reason = _of(job, state, word, output, own)
    return Outcome(status, reason, output)


def _of(job: str, state: State | None, word: Word | None, output: str, own: bool) -> tuple[str, str]:
    if state is None or not state.ended:
        return _by_word(job, word)
    after = f" after {state.elapsed}" if state.elapsed else ""
    match state.state:
        case "PREEMPTED":
            return "cancelled", f"preempted: job {job} had to make room{after}"
        case "TIMEOUT" | "DEADLINE" if own:
            return "timeout", f"time limit: job {job} was ended{after}"
        case "TIMEOUT" | "DEADLINE":
            return "cancelled", f"time limit: job {job} was ended{after}, while this trial ran"
        case "CANCELLED" | "REVOKED":
            who = f" {state.reason}" if state.reason.startswith("by ") else ""
            return "cancelled", f"cancelled: job {job}{who}{after if state.nodes else ', before it started'}"
        case "NODE_FAIL" | "BOOT_FAIL":
            return "failed", f"node_failed: {state.nodes or 'a node'}, job {job}{after}"
        case "OUT_OF_MEMORY":
            return "oom", f"job {job} used more memory than it was given"
        case "COMPLETED":
            return "failed", f"job {job} ended well but left no record"
    if state.signal == 9 and not word and _over_memory(output):  # Slurm without cgroups kills, and says why only there
        return "oom", f"job {job} used more memory than it was given"
    if not state.nodes:
        return "failed", f"job {job} could not start: {state.reason or state.state}"
    if state.signal and not word:
        return "failed", f"job {job} was killed by signal {state.signal}{after}"
    return _by_word(job, word) if word else ("failed", f"job {job} ended with exit code {state.code}{after}")


def _by_word(job: str, word: Word | None) -> tuple[str, str]:
    if word is None:
        return "failed", f"vanished: Slurm has forgotten job {job}, and it left no word"
    if word.asked:
        return "cancelled", f"job {job} was asked to end; Slurm no longer says why"
    if word.stage == "setup":
        return "failed", f"setup: the machine file's lines ended with exit code {word.code}"
    return "failed", f"job {job} ended with exit code {word.code} and left no record"


def _over_memory(output: str) -> bool:
    own = (line for line in output.splitlines() if line.startswith(SLURMS_OWN))
    return any(sign in line for line in own for sign in OVER_MEMORY)
