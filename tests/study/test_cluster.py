"""Trials over hosts: what is started, as literals, and what a study and its records make of hosts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaling_study.hosts.hosts import Host
from scaling_study.launch.launchers import LAUNCHERS, Command, command
from scaling_study.machine import Machine
from scaling_study.records import outcome
from scaling_study.study import plan
from scaling_study.study.machine_file import MachineFile
from scaling_study.study.study import Study
from scaling_study.study.support import ALONE, Cluster
from scaling_study.trial import Trial

BIN = Path("/venv/bin")
UNBOUND = "--binding-args=--bind-to none --map-by slot"
PROGRAM = ("/venv/bin/python", "/repo/x.py", "--model", "resnet8")
TWO = (Host("h1", 2), Host("h2", 4))
PLAIN = Cluster(TWO)
SITE = MachineFile(
    interface="ib0", environment={"NCCL_DEBUG": "WARN"},
    flags={"horovodrun": ["--verbose"], "mpirun": ["--mca", "a", "b"], "torchrun": ["--rdzv-conf", "timeout=60"]},
)  # fmt: skip
TOLD = Cluster(TWO, SITE, exports=("DATA_ROOT",))
IFNAMES = {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib0", "TP_SOCKET_IFNAME": "ib0"}
EACH = [sys.executable, "-m", "scaling_study.hosts.on_each_host"]
ALSO = ["-x", "GLOO_SOCKET_IFNAME", "-x", "NCCL_DEBUG", "-x", "NCCL_SOCKET_IFNAME", "-x", "TP_SOCKET_IFNAME"]


def trial(**keys: Any) -> Trial:
    return Trial(**{"framework": "horovod", "workers": 4, "hosts": 2, "controller": "mpi", "device": "cpu", **keys})


@pytest.mark.parametrize(
    ("launcher", "keys", "cluster", "argv"),
    [
        ("horovodrun", {}, PLAIN, ["/venv/bin/horovodrun", "-np", "4", "-H", "h1:2,h2:2", "--mpi", UNBOUND, *PROGRAM]),
        (
            "horovodrun", {"controller": "gloo"}, TOLD,
            ["/venv/bin/horovodrun", "-np", "4", "-H", "h1:2,h2:2", "--network-interface", "ib0", "--gloo",
             "--verbose", *PROGRAM],
        ),
        (
            "mpirun", {}, PLAIN,
            ["mpirun", "-np", "4", "--host", "h1:2,h2:2", "--allow-run-as-root", "--bind-to", "none",
             "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", *PROGRAM],
        ),
        (
            "mpirun", {}, TOLD,
            ["mpirun", "-np", "4", "--host", "h1:2,h2:2", "--mca", "btl_tcp_if_include", "ib0",
             "--mca", "oob_tcp_if_include", "ib0", "-x", "DATA_ROOT", *ALSO, "--allow-run-as-root",
             "--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "--mca", "a", "b", *PROGRAM],
        ),
        (
            "torchrun", {"framework": "torch_ddp", "controller": None}, TOLD,
            [*EACH, *ALSO, "h1:2,h2:2", "/venv/bin/torchrun", "--nnodes", "2", "--node-rank", "{node}",
             "--rdzv-endpoint", "h1:23456", "--nproc-per-node", "2", "--rdzv-conf", "timeout=60", *PROGRAM[1:]],
        ),
        (
            "deepspeed", {"framework": "deepspeed_zero", "controller": None}, PLAIN,
            [*EACH, "h1:2,h2:2", "/venv/bin/deepspeed", "--hostfile", "{hostfile}", "--no_ssh",
             "--node_rank", "{node}", "--master_addr", "h1", "--master_port", "23456", *PROGRAM[1:]],
        ),
    ],
)  # fmt: skip
def test_each_launchers_command_line_over_hosts(launcher, keys, cluster, argv):
    assert LAUNCHERS[launcher](trial(**keys), PROGRAM, BIN, 23456, cluster) == Command(tuple(argv))


def test_the_environment_of_the_machine_file_is_on_the_command_line():
    over = trial(launcher="mpirun")
    assert command(over, cluster=TOLD).env == {**IFNAMES, "NCCL_DEBUG": "WARN"}
    assert command(replace(over, hosts=None), cluster=TOLD).env == {"NCCL_DEBUG": "WARN"}, "no network is used"
    assert command(over, cluster=PLAIN).env == command(over).env == {}
    assert command(over, cluster=TOLD).shell().startswith("GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0 ")


STUDY = "study: a\nparity: false\nsweeps:\n  - framework: torch_ddp\n    matrix: {model: [resnet8], %s}\n"


def planned(study: Study, machine: Machine, cluster: Cluster = ALONE) -> dict[tuple[int | None, int], str]:
    """(hosts, workers) -> why it is unsupported."""
    made = plan.make(study, machine, cluster=cluster)
    return {(p.trial.hosts, p.trial.workers): p.unsupported for p in made.configurations}


def test_hosts_are_an_axis_as_any_other(study_of, machine):
    asked = study_of(STUDY % "workers: [4], hosts: [1, 2, 4]")
    assert planned(asked, machine(cores=2), Cluster((Host("h1", 2), Host("h2", 2)))) == {
        (1, 4): "hosts=1 needs 4 slots on each, but h1 has slots=2",
        (2, 4): "",
        (4, 4): "hosts=4, but 2 are listed (h1:2, h2:2)",
    }


def test_cores_are_those_of_each_host(study_of, machine):
    many = Cluster((Host("h1", 8), Host("h2", 8)))
    asked = study_of(STUDY % "workers: [8], hosts: [2], cores_per_worker: [1]")
    assert planned(asked, machine(cores=4), many) == {(2, 8): ""}
    assert planned(asked, machine(cores=2), many) == {(2, 8): "4 workers need 4 cores, each host has 2"}
    made = plan.make(study_of(STUDY % "workers: [2, 4], hosts: [2]"), machine(cores=4), cluster=many)
    assert {p.trial.cores_per_worker for p in made.configurations} == {2}, "4 cores for 2 workers a host"


def test_what_decides_speed_on_a_machine_is_part_of_every_id(plan_of):
    made = plan_of(STUDY % "workers: [2]")
    again = plan.make(made.study, made.machine, cluster=Cluster(TWO, MachineFile(price_per_worker_hour=1.0)))
    other = plan.make(made.study, made.machine, cluster=Cluster((), MachineFile(interface="ib0")))
    ids = [{p.trial.id for p in one.configurations} for one in (made, again, other)]
    assert ids[0] == ids[1] and not ids[0] & ids[2]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (["a", "a", "b", "b"], ""),
        (["a", "a", "a", "b"], "asked for 2 hosts with 2 workers each, found 3 on a, 1 on b"),
        (["a", "b", "c", "d"], "asked for 2 hosts with 2 workers each, found 1 on a, 1 on b, 1 on c, 1 on d"),
    ],
)
def test_ranks_on_other_hosts_than_asked_for_are_a_contradiction(rank_report, seen, said):
    reports = [rank_report(rank=rank, world_size=4, host=host) for rank, host in enumerate(seen)]
    assert outcome.first_problem(trial(), reports) == said
