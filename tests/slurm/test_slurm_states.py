"""Slurm's reports, as really printed (22.05.8, without and with an accounting database), and what they mean for a trial
whose job ended without a record."""

from __future__ import annotations

import pytest

from scaling_study.records import store
from scaling_study.slurm.jobs import (
    RUNNING,
    WAITING,
    JobState,
    ScriptExit,
    has_ended,
    parse_sacct,
    parse_squeue,
    trial_outcome,
)

# squeue -h -t all -O 'JobID:..|,Name:..|,State:..|,exit_code:..|,Reason:..|,NodeList:..|,TimeUsed:..|', padding cut
SQUEUE = """\
5         |job.sh   |CANCELLED       |0       |Priority                  |            |0:00        |
7         |job.sh   |CANCELLED       |36608   |None                      |node2       |0:02        |
1         |job.sh   |COMPLETED       |0       |None                      |node1       |0:00        |
2         |job.sh   |FAILED          |768     |NonZeroExitCode           |node2       |0:00        |
8         |job.sh   |FAILED          |9       |JobLaunchFailure          |node2       |0:01        |
16        |job.sh   |FAILED          |1       |BadConstraints            |            |0:00        |
10        |job.sh   |NODE_FAIL       |0       |NodeDown                  |node1       |0:28        |
20        |job.sh   |OUT_OF_MEMORY   |253     |OutOfMemory               |node1       |0:01        |
15        |job.sh   |PENDING         |0       |DependencyNeverSatisfied  |            |0:00        |
12        |job.sh   |PREEMPTED       |36608   |None                      |node[1-2]   |0:01        |
6         |job.sh   |TIMEOUT         |36608   |TimeLimit                 |node1       |1:24        |
13        |job.sh   |RUNNING         |0       |None                      |node2       |0:48        |
"""
# sacct -n -X -p -o JobIDRaw,JobName,State,ExitCode,NodeList,Elapsed
SACCT = """\
1|wrap|FAILED|3:0|node1|00:00:00|
2|wrap|CANCELLED by 0|0:0|node2|00:00:04|
3|wrap|FAILED|0:9|node1|00:00:02|
4|wrap|COMPLETED|0:0|node1|00:00:00|
6|wrap|RUNNING|0:0|node1|00:00:04|
7|wrap|NODE_FAIL|0:0|node2|00:00:03|
8|wrap|CANCELLED by 0|0:0|None assigned|00:00:00|
"""


def test_squeue():
    states = parse_squeue(SQUEUE)
    assert len(states) == 12
    assert states["2"] == JobState(
        "2", "job.sh", "FAILED", code=3, reason="NonZeroExitCode", nodes="node2", elapsed="0:00"
    )
    assert states["8"] == JobState("8", "job.sh", "FAILED", 0, 9, "JobLaunchFailure", "node2", "0:01")
    assert states["7"].code == 143 and states["7"].reason == "" and states["20"].signal == 125
    assert states["5"].nodes == "" and states["12"].nodes == "node[1-2]"


def test_sacct():
    states = parse_sacct(SACCT)
    assert states["2"] == JobState("2", "wrap", "CANCELLED", reason="by 0", nodes="node2", elapsed="00:00:04")
    assert (states["3"].code, states["3"].signal) == (0, 9) and states["1"].code == 3
    assert states["8"].nodes == "" and not states["6"].ended and states["7"].ended


def test_what_neither_waits_nor_runs_has_ended():
    states = parse_squeue(SQUEUE)
    assert states["15"].waits and [name for name, state in states.items() if not state.ended] == ["15", "13"]


@pytest.mark.parametrize(
    "text", ["", "\n", "slurm_load_jobs error: x", "1|2|3|", "|" * 30, "1|a|RUNNING|x|y|z|0:01|9|"]
)
def test_other_lines_are_passed_over(text):
    assert parse_squeue(text) == {} and parse_sacct(text) == {}


NOW = 1_800_000_000.0
TERM = ScriptExit("41", "node1", "study", 143, "TERM", 1_800_000_000)
KILLED_FOR_MEMORY = """\
slurmstepd-node2: error: StepId=8.batch exceeded memory limit (643231744 > 314572800), being killed
slurmstepd-node2: error: *** JOB 8 ON node2 CANCELLED AT 2026-11-22T02:34:03 ***
slurmstepd-node2: error: Exceeded job memory limit
"""


def state(name: str, **more: object) -> JobState:
    return JobState("41", "tiny.1", name, **{"nodes": "node1", "elapsed": "1:24", **more})  # type: ignore[arg-type]


def script_exit(code: int = 0, asked: str = "", stage: str = "study") -> ScriptExit:
    return ScriptExit("41", "node1", stage, code, asked, int(NOW))


def outcome_of(
    state: JobState | None, script: ScriptExit | None = None, output: str = "", single_trial: bool = True
) -> tuple[str, str]:
    outcome = trial_outcome("41", state, script, output, single_trial)
    assert outcome.status in store.STATUSES
    return outcome.status, outcome.reason


@pytest.mark.parametrize(
    ("state", "script", "output", "outcome"),
    [
        (state("PREEMPTED", code=143), TERM, "", ("cancelled", "preempted: job 41 after 1:24")),
        (state("TIMEOUT", code=143), TERM, "", ("timeout", "time limit: job 41 was ended after 1:24")),
        (state("DEADLINE"), None, "", ("timeout", "time limit: job 41 was ended after 1:24")),
        (state("CANCELLED", code=143), TERM, "", ("cancelled", "cancelled: job 41 after 1:24")),
        (state("CANCELLED", reason="by 1000"), None, "", ("cancelled", "cancelled: job 41 by 1000 after 1:24")),
        (state("CANCELLED", nodes="", elapsed="0:00"), None, "",
         ("cancelled", "cancelled: job 41, before it started")),
        (state("NODE_FAIL", reason="NodeDown"), None, "", ("failed", "node_failed: node1, job 41 after 1:24")),
        (state("BOOT_FAIL"), None, "", ("failed", "node_failed: node1, job 41 after 1:24")),
        (state("OUT_OF_MEMORY", signal=125), None, "", ("oom", "job 41 exceeded its memory limit")),
        (state("FAILED", signal=9, reason="JobLaunchFailure"), None, KILLED_FOR_MEMORY,
         ("oom", "job 41 exceeded its memory limit")),
        (state("FAILED", signal=9, reason="JobLaunchFailure"), None, "Exceeded job memory limit, said the trial",
         ("failed", "job 41 was killed by signal 9 after 1:24")),
        (state("FAILED", signal=1, nodes="", reason="BadConstraints"), None, "",
         ("failed", "job 41 could not start: BadConstraints")),
        (state("FAILED", code=3, reason="NonZeroExitCode"), script_exit(3, stage="setup"), "",
         ("failed", "setup: the machine file's lines ended with exit code 3")),
        (state("FAILED", code=1), script_exit(1), "", ("failed", "job 41 ended with exit code 1 and left no record")),
        (state("FAILED", code=1), None, "", ("failed", "job 41 ended with exit code 1 after 1:24")),
        (state("COMPLETED"), script_exit(), "", ("failed", "job 41 completed but left no record")),
        (None, TERM, "", ("cancelled", "job 41 received SIGTERM; Slurm no longer reports why")),
        (None, script_exit(1), "", ("failed", "job 41 ended with exit code 1 and left no record")),
        (None, None, "", ("failed", "vanished: Slurm no longer knows job 41, and its script left no exit status")),
        (state("RUNNING"), script_exit(1), "", ("failed", "job 41 ended with exit code 1 and left no record")),
        (state("LAUNCH_FAILED"), None, "", ("failed", "job 41 ended with exit code 0 after 1:24")),
    ],
)  # fmt: skip
def test_a_job_of_one_trial(state, script, output, outcome):
    assert outcome_of(state, script, output) == outcome


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (state("TIMEOUT"), ("cancelled", "time limit: job 41 was ended after 1:24, while this trial ran")),
        (state("CANCELLED"), ("cancelled", "cancelled: job 41 after 1:24")),
        (state("NODE_FAIL"), ("failed", "node_failed: node1, job 41 after 1:24")),
        (state("OUT_OF_MEMORY"), ("oom", "job 41 exceeded its memory limit")),
    ],
)
def test_of_a_sweep_only_what_the_running_trial_can_have_done_counts_against_it(state, outcome):
    assert outcome_of(state, None, single_trial=False) == outcome


@pytest.mark.parametrize("live", [*WAITING, *RUNNING])
def test_a_job_that_waits_or_runs_has_not_ended(live):
    assert not has_ended(state(live), None, NOW)
    assert not has_ended(state(live), script_exit(), NOW + 10), "it may still be completing"
    assert has_ended(state(live), script_exit(), NOW + 3600), "a controller that lost track of it"


@pytest.mark.parametrize("dead", ["COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "A_WORD_OF_A_LATER_SLURM"])
def test_whatever_else_slurm_says_is_an_end(dead):
    assert has_ended(state(dead), None, NOW) and has_ended(None, None, NOW)
