"""The job around a process, from the variables of a real one (Slurm 22.05)."""

from __future__ import annotations

import pytest

from scaling_study.hosts.hosts import Allocation, current, env_without_job

BATCH_SCRIPT = {
    "SLURM_CLUSTER_NAME": "planted", "SLURM_CPUS_ON_NODE": "1", "SLURM_JOB_CPUS_PER_NODE": "1(x2)",
    "SLURM_JOB_ID": "41", "SLURM_JOB_NAME": "tiny.fcea7bd1", "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_PARTITION": "main", "SLURM_LOCALID": "0", "SLURM_NNODES": "2",
    "SLURM_PROCID": "0", "SLURM_TASKS_PER_NODE": "1(x2)",
}  # fmt: skip


def test_in_a_job():
    found = current(BATCH_SCRIPT)
    assert found == Allocation("41", "tiny.fcea7bd1", "planted", "main", ("node1", "node2"), (1, 1))
    assert found.to_dict() == {
        "job": "41", "name": "tiny.fcea7bd1", "cluster": "planted", "partition": "main", "hosts": ["node1", "node2"],
    }  # fmt: skip


def test_outside_of_any():
    assert current({}) is None and current({"SLURM_CONF": "/etc/slurm/slurm.conf"}) is None


@pytest.mark.parametrize(
    ("said", "cores"), [("4(x2)", (4, 4)), ("16,8", (16, 8)), ("2(x9)", (2, 2)), ("", ()), ("many", ()), ("2(x", ())]
)
def test_cores_on_each_host(said, cores):
    assert current({**BATCH_SCRIPT, "SLURM_JOB_CPUS_PER_NODE": said}).cores == cores


def test_a_trial_on_one_host_sees_no_job():
    job = {"SLURM_JOB_ID": "41", "SLURMD_NODENAME": "n", "SLURM_CONF": "/x", "PATH": "/bin"}
    assert env_without_job(job) == ["env", "-u", "SLURMD_NODENAME", "-u", "SLURM_JOB_ID"]
    assert env_without_job({"SLURM_CONF": "/x", "PATH": "/bin"}) == []


def test_hosts_that_nobody_can_read_are_none():
    assert current({**BATCH_SCRIPT, "SLURM_JOB_NODELIST": "node[1-"}).hosts == ()
