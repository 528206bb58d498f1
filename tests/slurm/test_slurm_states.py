"""What Slurm says, as it really said it (22.05.8, without and with an accounting database)."""

from __future__ import annotations

import pytest

from scaling_study.slurm.states import State, from_sacct, from_squeue

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
    found = from_squeue(SQUEUE)
    assert len(found) == 12
    assert found["2"] == State("2", "job.sh", "FAILED", code=3, reason="NonZeroExitCode", nodes="node2", elapsed="0:00")
    assert found["8"] == State("8", "job.sh", "FAILED", 0, 9, "JobLaunchFailure", "node2", "0:01")
    assert found["7"].code == 143 and found["7"].reason == "" and found["20"].signal == 125
    assert found["5"].nodes == "" and found["12"].nodes == "node[1-2]"


def test_sacct():
    found = from_sacct(SACCT)
    assert found["2"] == State("2", "wrap", "CANCELLED", reason="by 0", nodes="node2", elapsed="00:00:04")
    assert (found["3"].code, found["3"].signal) == (0, 9) and found["1"].code == 3
    assert found["8"].nodes == "" and found["6"].runs and found["7"].ended


def test_waiting_running_and_ended_are_all_there_is():
    for state in from_squeue(SQUEUE).values():
        assert state.waits + state.runs + state.ended == 1, state
    found = from_squeue(SQUEUE)
    assert found["15"].waits and found["13"].runs and all(found[job].ended for job in ("5", "1", "10", "20", "6"))


@pytest.mark.parametrize(
    "text", ["", "\n", "slurm_load_jobs error: x", "1|2|3|", "|" * 30, "1|a|RUNNING|x|y|z|0:01|9|"]
)
def test_other_lines_are_passed_over(text):
    assert from_squeue(text) == {} and from_sacct(text) == {}


def test_a_number_that_is_none():
    assert from_squeue("1|a|FAILED|²|r|n|0:01|")["1"].code == 0
