"""Pinning and joining, in real processes: affinity is of a process, so each case has its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import forked
import pytest
import torch.distributed as dist

from scaling_study.machine import usable_cores
from scaling_study.ranks import LOCAL_RANK, Ranks, as_claimed, as_launched, require_one_a_host
from scaling_study.trial import Trial

pytestmark = pytest.mark.slow  # real launchers

CLAIM = """
import json, os, sys, torch
from scaling_study.ranks import claim_cores
from scaling_study.trial import Trial
share = int(sys.argv[1]) or None
cores = claim_cores(Trial(device="cpu", cores_per_worker=share))
threads = [sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")]
print(json.dumps({"cores": cores, "affinity": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads(),
                  "every_thread": threads}))
"""
several_cores = pytest.mark.skipif(usable_cores() < 2, reason="needs 2 cores")


def claim(share: int, **env: str) -> dict:
    return json.loads(forked.ended(forked.run([sys.executable, "-c", CLAIM, str(share)], env=env)).stdout)


@several_cores
@pytest.mark.parametrize(
    ("rank", "size"),
    [
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ],
    ids=["torchrun", "horovodrun gloo", "mpirun"],
)
def test_two_workers_have_disjoint_cores_whatever_launched_them(rank, size):
    first, second = (claim(1, **{rank: str(i), size: "2"}) for i in range(2))
    assert len(first["cores"]) == len(second["cores"]) == 1
    assert first["cores"] != second["cores"]
    for worker in (first, second):
        assert worker["affinity"] == worker["cores"]
        assert worker["threads"] == 1
        assert all(thread == worker["cores"] for thread in worker["every_thread"])


@several_cores
def test_a_process_that_openmp_has_bound_to_fewer_cores_ends_and_names_the_variable():
    """Of libgomp, which torch loads; a fork of a process with torch would be bound before."""
    environment = {**os.environ, "OMP_PROC_BIND": "close"}
    done = subprocess.run(
        [sys.executable, "-c", CLAIM, "1"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "OMP_PROC_BIND=close left this process 1 of the cores" in done.stderr
    assert len(claim(1, OMP_PROC_BIND="false")["cores"]) == 1


@several_cores
def test_more_cores_than_there_are_is_an_error():
    done = forked.run([sys.executable, "-c", CLAIM, "999"])
    assert done.returncode == 1 and "999 cores a worker were asked for, and this process may use" in done.stderr


@several_cores
def test_by_hand_the_share_is_the_machine_over_the_workers():
    assert claim(0)["threads"] == len(os.sched_getaffinity(0))
    assert claim(0, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")["threads"] == len(os.sched_getaffinity(0)) // 2


@several_cores
def test_a_launcher_that_says_no_local_size_gets_no_more_than_its_part():
    """srun by hand: SLURM_LOCALID and the number of tasks."""
    first, second = (claim(0, SLURM_LOCALID=str(i), WORLD_SIZE="2") for i in range(2))
    assert first["cores"] and second["cores"] and not set(first["cores"]) & set(second["cores"])


def test_ranks_whose_launcher_says_no_local_rank_must_be_alone_on_their_hosts():
    def hosts(*names: str) -> None:
        store = dist.HashStore()
        for rank, name in enumerate(names):
            store.set(f"host of rank {rank}", name)
        require_one_a_host(store, rank=1, world_size=len(names), host=names[1])

    hosts("h1", "h2", "h3")
    with pytest.raises(SystemExit) as stop:
        hosts("h1", "h2", "h2")
    assert str(stop.value) == (
        "ranks 1 and 2 are both on h2, and their launcher says neither's place there: set LOCAL_RANK and "
        "LOCAL_WORLD_SIZE (0 and 2, 1 and 2)"
    )


def test_a_local_rank_that_only_the_library_knows_is_too_late(monkeypatch):
    """Cores are claimed before MPI starts: without a name in the environment every rank took the first share."""
    for name in LOCAL_RANK:
        monkeypatch.delenv(name, raising=False)
    assert as_claimed(0) == 0
    with pytest.raises(SystemExit, match=r"^this is local rank 1, but its launcher did not say so"):
        as_claimed(1)
    monkeypatch.setenv("PALS_LOCAL_RANKID", "1")
    assert as_claimed(1) == 1


def test_more_workers_than_cores_wrap_around():
    rank = len(os.sched_getaffinity(0))
    assert claim(1, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(rank + 1))["cores"] == claim(1, LOCAL_RANK="0")["cores"]


def test_the_trial_as_launched_follows_the_launcher():
    asked = Trial(framework="horovod", allreduce="fp16", cores_per_worker=1)
    assert as_launched(asked, Ranks(world_size=2)).allreduce == "fp16"
    alone = as_launched(asked, Ranks(world_size=1))
    assert (alone.allreduce, alone.workers, alone.device) == ("none", 1, "cpu")
    assert as_launched(Trial(allreduce="none"), Ranks(world_size=2)).allreduce == "fp32"
    by_hand = as_launched(Trial(framework="diloco", outer="average"), Ranks(world_size=2))
    assert (by_hand.sync_every, by_hand.outer) == (8, "average"), "as a plan has what is left open"


def test_ranks_that_srun_started_are_known_to_torch_and_nobody_else_is(monkeypatch):
    from scaling_study.ranks import _take_from_srun

    step = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0", "MASTER_ADDR": "n1"}
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")

    def taken(**said: str) -> list[str | None]:
        for name in (*names, *step):
            monkeypatch.delenv(name, raising=False)
        for name, value in said.items():
            monkeypatch.setenv(name, value)
        _take_from_srun()
        found = [os.environ.get(name) for name in names]
        for name in names:
            os.environ.pop(name, None)
        return found

    assert taken(**step) == ["3", "4", "1"]
    assert taken(**{**step, "RANK": "0"})[0] == "0", "torchrun on that node counts"
    for missing in ("SLURM_STEP_ID", "MASTER_ADDR"):  # in a batch script, and under `srun --pty`
        assert taken(**{name: value for name, value in step.items() if name != missing}) == [None] * 3
