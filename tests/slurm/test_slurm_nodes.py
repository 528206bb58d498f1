"""The machine that jobs are planned for, and what each asks for."""

from __future__ import annotations

import dataclasses

import pytest

from scaling_study.errors import StudyError
from scaling_study.machine import Machine
from scaling_study.slurm.nodes import Node, machine, read, resources
from scaling_study.trial import Trial

# sinfo -h -N -o '%P|%N|%c|%m|%G', as it really said it and as on a cluster with GPUs
SINFO = """\
main*|node1|1|8000|(null)
urgent|node1|1|8000|(null)
main*|node2|1|8000|(null)
urgent|node2|1|8000|(null)
gpu|gpu1|64|512000|gpu:a100:4(S:0-1)
gpu|gpu2|64|515000|gpu:a100:4(S:0-1),nvme:1
mixed|old|16|64000|gpu:2
mixed|node1|1|8000|(null)
"""
HERE = Machine(8, "a login node", 2**34, (), {"torch": "2.15.0"})
TRIAL = Trial(framework="torch_ddp", device="cpu", cores_per_worker=2, workers=4)


def test_the_nodes_of_a_partition_or_of_the_default_one():
    assert read(SINFO) == [Node(1, (), 8000, "node1"), Node(1, (), 8000, "node2")]
    assert read(SINFO, "gpu") == [
        Node(64, ("a100",) * 4, 512000, "gpu1"), Node(64, ("a100",) * 4, 515000, "gpu2"),
    ]  # fmt: skip
    assert len(read(SINFO, "gpu,mixed")) == 4 and read(SINFO, "nothing") == []
    assert read("a line|of something else\n\n||||") == []


def test_a_node_is_the_machine_with_the_libraries_from_here():
    planned = machine(read(SINFO, "gpu"), {"partition": "gpu", "gpus_per_node": "4"}, HERE)
    assert planned == Machine(64, "a node of partition gpu", 512000 << 20, ("a100",) * 4, {"torch": "2.15.0"})
    assert planned.device == "cuda"


def test_a_job_sees_only_gpus_that_it_asks_for():
    assert machine(read(SINFO, "gpu"), {"partition": "gpu"}, HERE).device == "cpu"
    assert machine(read(SINFO, "gpu"), {"partition": "gpu", "gpus_per_node": "a100:2"}, HERE).gpus == ("a100",) * 2
    assert machine(read(SINFO), {"gpus_per_node": "2"}, HERE).gpus == ("GPU", "GPU"), "sinfo may not show them"


def test_unlike_nodes_are_not_mixed():
    with pytest.raises(StudyError, match=r"differ \(1 core; 16 cores and 2 x GPU\), and no study mixes them"):
        machine(read(SINFO, "mixed"), {"partition": "mixed"}, HERE)
    with pytest.raises(StudyError, match="partition nothing has no nodes"):
        machine([], {"partition": "nothing"}, HERE)


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, {"nodes": "1", "ntasks_per_node": "4", "cpus_per_task": "2"}),
        ({"hosts": 2}, {"nodes": "2", "ntasks_per_node": "2", "cpus_per_task": "2"}),
        ({"hosts": 4}, {"nodes": "4", "ntasks_per_node": "1", "cpus_per_task": "2"}),
        ({"workers": 1, "framework": "single"}, {"nodes": "1", "ntasks_per_node": "1", "cpus_per_task": "2"}),
    ],
)
def test_a_job_asks_for_what_its_trial_can_use(changes, asked):
    trial = dataclasses.replace(TRIAL, **changes)
    assert resources(trial, {"partition": "main", "nodes": "16"}) == {"partition": "main", **asked}


@pytest.mark.parametrize(("given", "hosts", "each"), [("4", None, "4"), ("a100:4", 2, "a100:2"), ("4", 4, "1")])
def test_gpus_too(given, hosts, each):
    trial = dataclasses.replace(TRIAL, device="cuda", hosts=hosts)
    assert resources(trial, {"gpus_per_node": given})["gpus_per_node"] == each


def test_one_process_that_drives_all_gpus():
    trial = dataclasses.replace(TRIAL, framework="torch_dp", device="cuda", workers=4)
    asked = resources(trial, {"gpus_per_node": "4"})
    assert (asked["ntasks_per_node"], asked["cpus_per_task"], asked["gpus_per_node"]) == ("1", "8", "4")


def test_what_a_person_says_of_tasks_stays():
    asked = resources(TRIAL, {"cpus_per_task": "16", "ntasks_per_node": "1"})
    assert (asked["ntasks_per_node"], asked["cpus_per_task"]) == ("1", "16")
