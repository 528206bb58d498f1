"""Jobs on disk and as Slurm reports them: really printed by 22.05.8, without and with an accounting database; and what
a report means for a trial whose job ended without a record."""

from __future__ import annotations

import dataclasses
import json

import pytest

from scaling_study.errors import HostError
from scaling_study.records import schema, store
from scaling_study.records.schema import Record
from scaling_study.records.store import UnreadableRecord
from scaling_study.slurm import jobs
from scaling_study.slurm.jobs import (
    RUNNING,
    WAITING,
    Job,
    JobState,
    ScriptExit,
    has_ended,
    parse_sacct,
    parse_squeue,
    trial_outcome,
)
from scaling_study.trial import Trial

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
    assert outcome.status in schema.STATUSES
    return outcome.status, outcome.reason


@pytest.mark.parametrize(
    ("state", "script", "output", "outcome"),
    [
        (state("PREEMPTED", code=143), TERM, "", ("cancelled", "preempted: job 41 after 1:24")),
        (state("TIMEOUT", code=143), TERM, "", ("timeout", "time limit: job 41 was ended after 1:24")),
        (state("CANCELLED", code=143), TERM, "", ("cancelled", "cancelled: job 41 after 1:24")),
        (state("CANCELLED", reason="by 1000"), None, "", ("cancelled", "cancelled: job 41 by 1000 after 1:24")),
        (state("CANCELLED", nodes="", elapsed="0:00"), None, "",
         ("cancelled", "cancelled: job 41, before it started")),
        (state("NODE_FAIL", reason="NodeDown"), None, "", ("failed", "node_failed: node1, job 41 after 1:24")),
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
    ],
)  # fmt: skip
def test_a_job_of_one_trial(state, script, output, outcome):
    assert outcome_of(state, script, output) == outcome


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (state("TIMEOUT"), ("cancelled", "time limit: job 41 was ended after 1:24, while this trial ran")),
        (state("CANCELLED"), ("cancelled", "cancelled: job 41 after 1:24")),
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
    assert has_ended(state("A_WORD_OF_A_LATER_SLURM"), None, NOW) and has_ended(None, None, NOW)


JOB = Job("tiny.0a1b2c3d", "sweep-1", "2026-11-22T02:00:00+00:00", id="41")


def test_written_and_read_again(tmp_path):
    path = jobs.prepare(tmp_path, JOB, "#!/bin/bash\n")
    assert path.read_text() == "#!/bin/bash\n" and path.stat().st_mode & 0o100
    assert jobs.all_jobs(tmp_path) == [JOB] == list(jobs.uncollected(tmp_path))
    jobs.write(tmp_path, dataclasses.replace(JOB, collected_at="2026-11-22T03:00:00+00:00"))
    assert list(jobs.uncollected(tmp_path)) == []


def test_sweeps_are_numbered(tmp_path):
    assert jobs.next_sweep(tmp_path) == "sweep-1"
    jobs.prepare(tmp_path, JOB, "")
    assert jobs.next_sweep(tmp_path) == "sweep-2"
    (tmp_path / "slurm" / "sweep-1").rename(tmp_path / "slurm" / "sweep-2")
    assert jobs.next_sweep(tmp_path) == "sweep-1"


@pytest.mark.parametrize(
    "changes", [{"id": 41}, {"folder": "sweep-2"}, {"trial": "../../elsewhere"}, {"extra": 1}, {"measure": []}]
)
def test_what_is_no_job_of_ours_is_refused(tmp_path, changes):
    path = jobs.prepare(tmp_path, JOB, "").with_name("job.json")
    path.write_text(json.dumps({**dataclasses.asdict(JOB), **changes}))
    with pytest.raises(UnreadableRecord, match=r"job\.json is not whole"):
        jobs.read(path)


def test_a_broken_job_json_is_one_clear_line(tmp_path):
    path = jobs.prepare(tmp_path, JOB, "").with_name("job.json")
    path.write_text("{")
    with pytest.raises(HostError, match=r"job\.json cannot be read.*; move its folder away"):
        jobs.all_jobs(tmp_path)


def test_a_trial_that_was_begun_is_a_whole_record_or_none(tmp_path):
    assert jobs.begun_record(tmp_path) is None
    (tmp_path / "begun.json").write_text('{"schema": 1, "status": "cancelled"}')
    assert jobs.begun_record(tmp_path) is None
    whole = Record("tiny", "x.r1", "x", Trial(), "cancelled", job={"job": "41"})
    (tmp_path / "begun.json").write_bytes(store.encoded(whole.to_dict()))
    assert jobs.begun_record(tmp_path) == whole
