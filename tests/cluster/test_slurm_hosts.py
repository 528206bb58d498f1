"""Slurm jobs over two hosts that are hosts: real ranks, by every launcher that finds its way, none of them by ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import slurm_daemons
from eventually import until
from network import PATH, Network
from over_hosts import BIN, OVER_HOSTS, QUICK, TWO, sweeps_of_commands
from slurm_daemons import SlurmOnHosts
from slurm_study import Study

from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT


def why_no_pmix() -> str:
    """Why srun cannot start MPI's ranks, though its plugin is there; empty: it can.

    Another process tries: this one may load an Open MPI later, whose own libpmix has the same soname and other symbols.
    """
    trial = "import ctypes; ctypes.CDLL('libpmix.so')"  # by this name the plugin opens it
    if subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode:
        return "Slurm's PMIx plugin finds no libpmix.so (Debian: apt-get install libpmix-dev)"
    return ""


WHY_NOT = slurm_daemons.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
NO_PMIX = WHY_NOT or why_no_pmix()
BY_SRUN = {
    "srun torch": f"{{framework: torch_ddp, launcher: srun, {TWO}}}",
    "srun hivemind": f"{{framework: hivemind, launcher: srun, target_batch_size: 128, matchmaking_seconds: 2, {TWO}}}",
}
BY_SRUN_WITH_PMIX = {
    "srun horovod": f"{{framework: horovod, launcher: srun, {TWO}}}",
    "srun mpi4py": f"{{framework: mpi_allreduce, launcher: srun, {TWO}}}",
}
WITHOUT_SSH = {name: text for name, text in OVER_HOSTS.items() if not name.startswith("horovodrun")} | BY_SRUN


@pytest.fixture(scope="module")
def slurm(network: Network) -> SlurmOnHosts:
    """On h1 and h2, from which nobody gets to the other by ssh."""
    made = SlurmOnHosts(network.shared / "slurm", network)
    made.start()
    for host in network:
        host.plant(Path("/bin/false"), instead_of=Path("/usr/bin/ssh"))
    return made


@pytest.fixture
def study(network: Network, slurm: SlurmOnHosts) -> Callable[[str, list[str]], Study]:
    """study("name", sweeps): real ranks, submitted from h1 to both hosts."""

    def make(name: str, sweeps: list[str]) -> Study:
        made = Study(network.shared / name, CHECKOUT, slurm, QUICK, sweeps)
        # In ours horovodrun may remember an ssh that went well.
        made.environment |= {"HOME": str(made.folder), "PATH": f"{BIN}{os.pathsep}{PATH}", "A_PASSWORD": "s3cret"}
        return made

    return make


def ran(study: Study, *options: str) -> list[Record]:
    """Submit it, and wait for the end of its jobs: its records."""
    study.submit(*options)
    study.until(study.no_job_is_left, 600.0)
    study.collect()
    return study.records()


BOTH = "nodes=2,ntasks_per_node=1"


def runs_over_both(study: Study, count: int) -> None:
    found = ran(study, BOTH)
    assert [record.reason for record in found if record.status != "ok"] == [], study.said()
    assert len(found) == count
    for record in found:
        assert [rank.host for rank in record.ranks] == ["h1", "h2"], record.id
        assert record.hosts == ["h1:1", "h2:1"] and record.job["hosts"] == ["h1", "h2"]
    assert "s3cret" not in study.said()


def test_a_whole_study_over_the_hosts_of_its_job(network, study):
    runs_over_both(study("whole", list(WITHOUT_SSH.values())), len(WITHOUT_SSH))
    until(lambda: all(process.name().startswith("slurm") for host in network for process in host.processes()))


@pytest.mark.long
def test_commands_of_a_user_over_the_hosts_of_their_job(network, study):
    runs_over_both(study("commands", sweeps_of_commands(network.shared, ["torchrun", "mpirun", "srun"])), 3)


@pytest.mark.skipif(bool(NO_PMIX), reason=NO_PMIX)
def test_srun_starts_the_ranks_of_mpi_over_both_hosts(study):
    runs_over_both(study("pmix", list(BY_SRUN_WITH_PMIX.values())), len(BY_SRUN_WITH_PMIX))


@pytest.mark.parametrize("launcher", ["horovodrun --mpi", "horovodrun --gloo"])
def test_horovodrun_asks_for_ssh_whatever_starts_its_ranks(study, launcher):
    one = study(launcher.replace(" ", ""), [OVER_HOSTS[launcher]])
    (record,) = ran(one, BOTH)
    assert record.status == "failed" and "could not connect to some hosts via ssh" in one.said()


def test_a_trial_over_two_hosts_in_a_job_of_its_own(network, study):
    commands = sweeps_of_commands(network.shared, ["torchrun", "srun"])
    one = study("own", [WITHOUT_SSH["torchrun"], WITHOUT_SSH["mpirun"], *commands])
    script = one.run("--slurm", "", "--per-trial", "--slurm-print").stdout
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=1\n" in script
    found = ran(one, "", "--per-trial")
    assert len(found) == 4, one.said()
    for record in found:
        assert (record.status, [rank.host for rank in record.ranks]) == ("ok", ["h1", "h2"]), one.said()


def test_a_trial_that_stays_on_its_host_sees_nothing_of_the_job(study):
    """horovodrun and mpirun in a job of two hosts would else start a rank on each, or none."""
    here = "model: resnet8, data: synthetic, workers: 2, cores_per_worker: 1, oversubscribe: true"
    one = study("stays", [f"{{framework: horovod, {here}}}", f"{{framework: mpi_allreduce, {here}}}"])
    found = ran(one, BOTH)
    assert [(record.status, [rank.host for rank in record.ranks]) for record in found] == [("ok", ["h1", "h1"])] * 2
