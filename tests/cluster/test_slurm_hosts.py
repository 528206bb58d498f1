"""Slurm jobs over two hosts that are hosts: real ranks, by every launcher that finds its way, none of them by ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm_daemons
from network import PATH, Network
from over_hosts import BIN, OVER_HOSTS, QUICK, TWO, until
from slurm_daemons import SlurmOnHosts

from scaling_study.records import store
from scaling_study.records.store import Record
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


class Study:
    """A study file that both hosts see, submitted from h1."""

    def __init__(self, folder: Path, network: Network, slurm: SlurmOnHosts, sweeps: list[str]) -> None:
        self.folder, self._host, self._slurm = folder, network["h1"], slurm
        folder.mkdir()
        lines = ["study: over", "parity: false", f"measure: {QUICK}", "sweeps:", *(f"  - {one}" for one in sweeps)]
        (folder / "study.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def run(self, *words: str) -> str:
        """The front door on h1."""
        environment = {
            **os.environ, "SLURM_CONF": str(self._slurm.conf), "PATH": f"{BIN}{os.pathsep}{PATH}",
            "PYTHONPATH": str(CHECKOUT), "COLUMNS": "200", "A_PASSWORD": "s3cret",
            "HOME": str(self.folder),  # in ours horovodrun may remember an ssh that went well
        }  # fmt: skip
        command = [sys.executable, str(CHECKOUT / "run_sweep.py"), "study.yaml", *words]
        done = self._host.run(*command, folder=self.folder, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def end(self, seconds: float = 600.0) -> None:
        """Wait until no job is left."""
        until(lambda: not self._slurm.ask("squeue", "-h").strip(), seconds, self.said)

    def said(self) -> str:
        paths = [*self.folder.glob("results/*/slurm/*/output.txt"), *self.folder.glob("results/*/trials/*/log.txt")]
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in paths)

    def records(self) -> Iterator[Record]:
        return store.read_study(self.folder / "results" / "over")


def test_a_whole_study_over_the_hosts_of_its_job(network, slurm):
    runs_over_both(Study(network.shared / "whole", network, slurm, list(WITHOUT_SSH.values())), len(WITHOUT_SSH))
    until(lambda: all(process.name().startswith("slurm") for host in network for process in host.processes()), 10)


@pytest.mark.skipif(bool(NO_PMIX), reason=NO_PMIX)
def test_srun_starts_the_ranks_of_mpi_over_both_hosts(network, slurm):
    sweeps = list(BY_SRUN_WITH_PMIX.values())
    runs_over_both(Study(network.shared / "pmix", network, slurm, sweeps), len(sweeps))


@pytest.mark.parametrize("launcher", ["horovodrun --mpi", "horovodrun --gloo"])
def test_horovodrun_asks_for_ssh_whatever_starts_its_ranks(network, slurm, launcher):
    study = Study(network.shared / launcher.replace(" ", ""), network, slurm, [OVER_HOSTS[launcher]])
    study.run("--slurm", "nodes=2,ntasks_per_node=1")
    study.end()
    (record,) = study.records()
    assert record.status == "failed" and "could not connect to some hosts via ssh" in study.said()


def runs_over_both(study: Study, count: int) -> None:
    study.run("--slurm", "nodes=2,ntasks_per_node=1")
    study.end()
    found = list(study.records())
    assert [record.reason for record in found if record.status != "ok"] == [], study.said()
    assert len(found) == count
    for record in found:
        assert [rank.host for rank in record.ranks] == ["h1", "h2"], record.id
        assert record.hosts == ["h1:1", "h2:1"] and record.job["hosts"] == ["h1", "h2"]
    assert "s3cret" not in study.said()


def test_a_trial_over_two_hosts_in_a_job_of_its_own(network, slurm):
    study = Study(network.shared / "own", network, slurm, [WITHOUT_SSH["torchrun"], WITHOUT_SSH["mpirun"]])
    script = study.run("--slurm", "", "--per-trial", "--slurm-print")
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=1\n" in script
    study.run("--slurm", "", "--per-trial")
    study.end()
    study.run("--collect")
    for record in study.records():
        assert (record.status, [rank.host for rank in record.ranks]) == ("ok", ["h1", "h2"]), study.said()


def test_a_trial_that_stays_on_its_host_sees_nothing_of_the_job(network, slurm):
    """horovodrun and mpirun in a job of two hosts would else start a rank on each, or none."""
    here = "model: resnet8, data: synthetic, workers: 2, cores_per_worker: 1, oversubscribe: true"
    sweeps = [f"{{framework: horovod, {here}}}", f"{{framework: mpi_allreduce, {here}}}"]
    study = Study(network.shared / "stays", network, slurm, sweeps)
    study.run("--slurm", "nodes=2,ntasks_per_node=1")
    study.end()
    found = list(study.records())
    assert len(found) == 2
    for record in found:
        assert (record.status, [rank.host for rank in record.ranks]) == ("ok", ["h1", "h1"]), study.said()
