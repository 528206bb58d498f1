"""What comes of a trial whose job ended without a record: a table of everything Slurm was seen to say."""

from __future__ import annotations

import pytest

from scaling_study.records import store
from scaling_study.slurm import verdict
from scaling_study.slurm.states import RUNNING, WAITING, State
from scaling_study.slurm.words import Word

NOW = 1_800_000_000.0
TERM = Word("41", "node1", "study", 143, "TERM", 1_800_000_000)
KILLED_FOR_MEMORY = """\
slurmstepd-node2: error: StepId=8.batch exceeded memory limit (643231744 > 314572800), being killed
slurmstepd-node2: error: *** JOB 8 ON node2 CANCELLED AT 2026-11-22T02:34:03 ***
slurmstepd-node2: error: Exceeded job memory limit
"""


def state(word: str, **more: object) -> State:
    return State("41", "tiny.1", word, **{"nodes": "node1", "elapsed": "1:24", **more})  # type: ignore[arg-type]


def word(code: int = 0, asked: str = "", stage: str = "study") -> Word:
    return Word("41", "node1", stage, code, asked, int(NOW))


def said(state: State | None, word: Word | None = None, output: str = "", own: bool = True) -> tuple[str, str]:
    outcome = verdict.of("41", state, word, output, own)
    assert outcome.status in store.STATUSES
    return outcome.status, outcome.reason


@pytest.mark.parametrize(
    ("state", "word", "output", "outcome"),
    [
        (state("PREEMPTED", code=143), TERM, "", ("cancelled", "preempted: job 41 had to make room after 1:24")),
        (state("TIMEOUT", code=143), TERM, "", ("timeout", "time limit: job 41 was ended after 1:24")),
        (state("DEADLINE"), None, "", ("timeout", "time limit: job 41 was ended after 1:24")),
        (state("CANCELLED", code=143), TERM, "", ("cancelled", "cancelled: job 41 after 1:24")),
        (state("CANCELLED", reason="by 1000"), None, "", ("cancelled", "cancelled: job 41 by 1000 after 1:24")),
        (state("CANCELLED", nodes="", elapsed="0:00"), None, "",
         ("cancelled", "cancelled: job 41, before it started")),
        (state("NODE_FAIL", reason="NodeDown"), None, "", ("failed", "node_failed: node1, job 41 after 1:24")),
        (state("BOOT_FAIL"), None, "", ("failed", "node_failed: node1, job 41 after 1:24")),
        (state("OUT_OF_MEMORY", signal=125), None, "", ("oom", "job 41 used more memory than it was given")),
        (state("FAILED", signal=9, reason="JobLaunchFailure"), None, KILLED_FOR_MEMORY,
         ("oom", "job 41 used more memory than it was given")),
        (state("FAILED", signal=9, reason="JobLaunchFailure"), None, "Exceeded job memory limit, said the trial",
         ("failed", "job 41 was killed by signal 9 after 1:24")),
        (state("FAILED", signal=1, nodes="", reason="BadConstraints"), None, "",
         ("failed", "job 41 could not start: BadConstraints")),
        (state("FAILED", code=3, reason="NonZeroExitCode"), word(3, stage="setup"), "",
         ("failed", "setup: the machine file's lines ended with exit code 3")),
        (state("FAILED", code=1), word(1), "", ("failed", "job 41 ended with exit code 1 and left no record")),
        (state("FAILED", code=1), None, "", ("failed", "job 41 ended with exit code 1 after 1:24")),
        (state("COMPLETED"), word(), "", ("failed", "job 41 ended well but left no record")),
        (None, TERM, "", ("cancelled", "job 41 was asked to end; Slurm no longer says why")),
        (None, word(1), "", ("failed", "job 41 ended with exit code 1 and left no record")),
        (None, None, "", ("failed", "vanished: Slurm has forgotten job 41, and it left no word")),
        (state("RUNNING"), word(1), "", ("failed", "job 41 ended with exit code 1 and left no record")),
        (state("LAUNCH_FAILED"), None, "", ("failed", "job 41 ended with exit code 0 after 1:24")),
    ],
)  # fmt: skip
def test_a_job_of_one_trial(state, word, output, outcome):
    assert said(state, word, output) == outcome


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (state("TIMEOUT"), ("cancelled", "time limit: job 41 was ended after 1:24, while this trial ran")),
        (state("CANCELLED"), ("cancelled", "cancelled: job 41 after 1:24")),
        (state("NODE_FAIL"), ("failed", "node_failed: node1, job 41 after 1:24")),
        (state("OUT_OF_MEMORY"), ("oom", "job 41 used more memory than it was given")),
    ],
)
def test_of_a_sweep_only_what_the_running_trial_can_have_done_counts_against_it(state, outcome):
    assert said(state, None, own=False) == outcome


def test_the_end_of_what_it_printed_is_kept():
    assert verdict.of("41", None, None, "the last line", True).error == "the last line"


@pytest.mark.parametrize("live", [*WAITING, *RUNNING])
def test_a_job_that_waits_or_runs_has_not_ended(live):
    assert not verdict.ended(state(live), None, NOW)
    assert not verdict.ended(state(live), word(), NOW + 10), "it may still be completing"
    assert verdict.ended(state(live), word(), NOW + 3600), "a controller that lost track of it"


@pytest.mark.parametrize("dead", ["COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "A_WORD_OF_A_LATER_SLURM"])
def test_whatever_else_slurm_says_is_an_end(dead):
    assert verdict.ended(state(dead), None, NOW) and verdict.ended(None, None, NOW)
