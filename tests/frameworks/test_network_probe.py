"""The network probe for real: a wrong result, and a study from file to figure. By every launcher: test_launches.py."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pandas as pd
import pytest

from analysis.frames import results
from analysis.statistics import network
from scaling_study import cli
from scaling_study.frameworks import FRAMEWORKS, ONE_RANK_HAS_NO_NETWORK
from scaling_study.launch import launchers
from scaling_study.models import NO_MODEL
from scaling_study.ranks import started_by
from scaling_study.records import outcome, schema, store
from scaling_study.stats.network import COLLECTIVES
from scaling_study.study import support
from scaling_study.trial import Trial

BIN = Path(sys.executable).parent
SCRIPT = "horovod_runs/allreduce_bandwidth.py"
QUICK = ["--max-bytes=16384", "--max-seconds=2", "--min-steps=3", "--warmup-steps=1", "--cores-per-worker=1"]


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}
THEIR_FLAGS = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib"}


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({}, "torchrun"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h1"}, "torchrun"),
        (OPEN_MPI, "mpirun"),
        ({"PMI_RANK": "0"}, "mpirun"),
        ({**OPEN_MPI, **THEIR_FLAGS}, "horovodrun"),
        ({**OPEN_MPI, **THEIR_FLAGS, "OMPI_MCA_btl": "^openib,ofi"}, "horovodrun"),
        ({**OPEN_MPI, "OMPI_MCA_pml": "ob1"}, "mpirun"),
        ({"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_RANK": "0"}, "horovodrun"),
        ({**OPEN_MPI, "RANK": "0", "MASTER_ADDR": "h1"}, "torchrun"),  # mpirun that starts torch's own processes
    ],
)
def test_a_launcher_is_known_by_what_it_leaves(environment: dict[str, str], launcher: str) -> None:
    assert started_by(environment) == launcher


# --- in the plan ---

STUDY = """
study: probed
measure: {repeats: 1, warmup_steps: 1, min_steps: 2, max_steps: 4, min_seconds: 0, max_seconds: 5, timeout_seconds: 600}
sweeps:
  - {framework: single, model: resnet8, data: synthetic, batch_per_worker: 4}
  - framework: network_probe
    workers: 2
    max_bytes: 16384
    matrix: {launcher: [torchrun]}
parity: false
"""


def test_a_probe_has_no_model_no_gate_and_no_controller_but_horovods(plan_of) -> None:
    made = plan_of(STUDY.replace("[torchrun]", "[torchrun, mpirun, horovodrun]").replace("parity: false", ""))
    probes = [p for p in made.configurations if p.trial.framework == "network_probe"]
    assert {(p.trial.launcher, p.trial.controller) for p in probes} == {
        ("torchrun", None), ("mpirun", None), ("horovodrun", "mpi"),
    }  # fmt: skip
    assert all(p.trial.model == NO_MODEL and p.trial.configuration.startswith("network_probe-") for p in probes)
    assert {gate.trial.framework for gate in made.gates} == {"single"}
    assert support.gate_ids(probes[0].trial) == []
    needed = {p.trial.launcher: p.unsupported for p in probes}
    assert needed == {"torchrun": "", "mpirun": "mpi4py is not installed", "horovodrun": ""}, "only by its launcher"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("max_bytes: 16384\n    min_bytes: 65536", "min_bytes=65536 is more than max_bytes=16384"),
        ("controller: gloo", "'controller' with launcher=horovodrun only, not with torchrun"),
        ("batch_per_worker: 32", "no 'batch_per_worker'"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(problems_of, keys: str, said: str) -> None:
    (problem,) = problems_of(STUDY.replace("max_bytes: 16384", keys))
    assert problem.startswith("study.yaml:8: ") and said in problem


def test_one_worker_is_unsupported_with_its_reason(plan_of) -> None:
    made = plan_of(STUDY.replace("workers: 2", "workers: 1"))
    assert ONE_RANK_HAS_NO_NETWORK in {p.unsupported for p in made.configurations}


def test_the_script_is_told_its_launcher() -> None:
    for launcher in FRAMEWORKS["network_probe"].launchers:
        trial = Trial(framework="network_probe", workers=2, launcher=launcher, max_bytes=4096)
        argv = launchers.command(trial).argv
        assert argv[argv.index("--launcher") + 1] == launcher and "--max-bytes" in argv
        assert not {"--model", "--batch-per-worker", "--allreduce", "--data"} & set(argv)


# --- reports against each other ---


def reports(rank_report, change=lambda rank, rows: rows) -> list[schema.RankReport]:
    rows = [schema.Transfer("allreduce", size, False, [1e-5, 2e-5], True) for size in (1024, 4096)]
    return [
        rank_report(
            rank=rank, world_size=2, device="cpu", samples_per_step=0, samples_seen=0, allreduce_bytes=None,
            communication_bytes={}, network=change(rank, list(rows)),
        )
        for rank in range(2)
    ]  # fmt: skip


def changed(index: int, **keys):
    """On rank 1 only."""

    def change(rank, rows):
        rows[index] = replace(rows[index], **keys) if rank == 1 else rows[index]
        return rows

    return change


PROBE = Trial(framework="network_probe", workers=2, device="cpu", model=NO_MODEL)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rank, rows: rows, ""),
        (changed(1, correct=False), "rank 1: allreduce of 4096 bytes gave a wrong result"),
        (changed(0, bytes=1000), "rank 1 measured another row of the network than rank 0"),
        (changed(0, busy=True), "rank 1 measured another row of the network than rank 0"),
        (changed(0, seconds=[1e-5]), "rank 1 timed another number of calls of allreduce of 1024 bytes than rank 0"),
        (changed(0, seconds=[1e-5, -1.0]), "rank 1 reports seconds of allreduce of 1024 bytes that are not positive"),
        (lambda rank, rows: rows[: 2 - rank], "rank 1 has 1 rows of the network, rank 0 2"),
        (lambda rank, rows: [], "rank 0 has 0 rows of the network, rank 0 0"),
    ],
)
def test_only_reports_of_a_network_that_contradict_each_other_are_a_failure(rank_report, change, said: str) -> None:
    problem = outcome.first_problem(PROBE, reports(rank_report, change))
    assert problem.startswith(said) and bool(problem) == bool(said)


# --- the whole way ---


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path / "study.yaml"


def swept(file: Path) -> int:
    return cli.run_sweep([str(file), "--results", str(file.parent / "results")])


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_study_holds_the_network_it_ran_on(file: Path) -> None:
    """From the study file through the real launcher to table, figure and fit; and the probe is nobody's competitor."""
    assert swept(file) == 0
    folder = file.parent / "results" / "probed"
    assert (folder / "figures/network.png").exists()
    sizes = pd.read_csv(folder / "tables" / "network.csv")
    assert len(sizes) == 2 * 4 * 3 and set(sizes.bytes) == {1024, 4096, 16384} and (sizes.seconds > 0).all()
    for path in (folder / "tables").glob("throughput-*"):
        assert "network" not in path.read_text(), path
    assert list(pd.read_csv(folder / "configurations.csv").framework) == ["single"]
    rows = pd.read_csv(folder / "results.csv").set_index("framework")
    assert rows.status.to_dict() == {"single": "ok", "network_probe": "ok"}
    assert pd.isna(rows.samples_per_second.network_probe) and rows.model.network_probe == NO_MODEL
    (probe,) = network.probes(results.read(folder))
    fits = probe.fits
    assert set(fits) == {(name, busy) for name in COLLECTIVES for busy in (False, True)}
    assert fits["allreduce", False].seconds(1024) > 0


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
def test_a_wrong_result_is_a_failed_trial_and_no_figure(file: Path, monkeypatch) -> None:
    wrong = replace(FRAMEWORKS["network_probe"], script="tests/scripts_that/reduce_wrongly.py")
    monkeypatch.setattr(launchers, "FRAMEWORKS", MappingProxyType({**FRAMEWORKS, "network_probe": wrong}))
    file.write_text(STUDY.replace("max_bytes: 16384", "max_bytes: 16384\n    collective: allreduce"))
    assert swept(file) == 1
    folder = file.parent / "results" / "probed"
    (record,) = (r for r in store.read_study(folder) if r.trial.framework == "network_probe")
    assert (record.status, record.reason) == ("failed", "rank 1: allreduce of 1024 bytes gave a wrong result")
    assert [row.correct for row in record.ranks[1].network] == [False] + [True] * 5
    assert all(row.correct for row in record.ranks[0].network)
    assert not (folder / "figures" / "network.png").exists() and not [
        probe.fits for probe in network.probes(results.read(folder)) if probe.fits
    ]
