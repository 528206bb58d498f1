"""Sweeps whose configurations share launches, really run: what is recorded and kept, and what a failure costs."""

from __future__ import annotations

import dataclasses
import math
import re
import signal
from pathlib import Path

import forked
import psutil
import pytest
from planted_sweeps import MACHINE, Seen, run

from scaling_study.launch import shared_launch
from scaling_study.machine import installed
from scaling_study.processes import process
from scaling_study.records import store
from scaling_study.study import groups, support
from scaling_study.study.documents import Document
from scaling_study.study.plan import Plan, Planned
from scaling_study.study.study import Measure, Study
from scaling_study.sweep import Run
from scaling_study.trial import Trial, Window

pytestmark = pytest.mark.slow

SINGLE = Trial(
    model="resnet8", batch_per_worker=4, data="synthetic", device="cpu", cores_per_worker=1, allreduce="none",
    window=Window(warmup_steps=4, min_steps=4, min_seconds=0.0),
)  # fmt: skip
DDP = dataclasses.replace(SINGLE, framework="torch_ddp", workers=2, launcher="torchrun", allreduce="fp32")


def plan_of(*trials: Trial, repeats: int = 1, rounds: int = 2) -> Plan:
    """All of them warm."""
    measure = Measure(
        warm=True, rounds=rounds, block_seconds=0.05, repeats=repeats, max_repeats=repeats, timeout_seconds=120.0
    )
    document = Document(Path("study.yaml"), "study: warm\n", {}, {})
    study = Study("warm", "weak", None, 0, measure, (), document, parity=False)
    planned = tuple(Planned(groups.warmed(trial, measure), measure) for trial in trials)
    return Plan(study, MACHINE, planned, ())


def gates_of(*trials: Trial) -> Plan:
    """The gates behind them, and nothing else."""
    plan = plan_of(*trials)
    gates = tuple(Planned(gate, plan.configurations[0].measure) for gate in support.needed(trials))
    return dataclasses.replace(plan, configurations=(), gates=gates)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path, Seen]:
    """Two repeats of three configurations in two groups, of which the sentinel has the longest steps."""
    plan = plan_of(SINGLE, dataclasses.replace(SINGLE, batch_per_worker=8), DDP, repeats=2)
    plan = dataclasses.replace(plan, sentinel=plan.configurations[1].trial.configuration)
    folder = tmp_path_factory.mktemp("swept")
    with forked.starts():
        seen, _ = run(plan, folder)
    return plan, folder, seen


def test_each_configuration_has_a_record_of_each_launch(swept: tuple[Plan, Path, Seen]) -> None:
    _, folder, seen = swept
    records = list(store.read_study(folder))
    assert len(records) == len(seen.ended) == 6
    for record in records:
        assert (record.status, record.reason, record.trial.warm) == ("ok", "", True)
        assert [block.round for block in record.ranks[0].blocks] == [0, 1]
        assert sum(block.steps for block in record.ranks[0].blocks) == len(record.ranks[0].step_seconds) >= 4
        assert record.launch_seconds is None and not record.notes
        assert re.fullmatch(rf"{record.trial.repeat}/0-[01]-{record.trial.framework}", record.launch)
        assert record.total_seconds and record.total_seconds < 600
        assert "--rounds" not in record.command and "resnet8" in record.command
        inspected = record.trial.repeat == 1  # by the first launch, for all
        for rank in record.ranks:
            assert bool(rank.memory.get("parameters")) == inspected and "resident" not in rank.memory
            looked_at = (rank.phases, rank.peak_memory_bytes, rank.allreduce_bytes, rank.peak_flops_per_second)
            assert {each is not None for each in looked_at} == {inspected}
    assert len({record.id for record in records}) == 6


def test_the_sentinel_of_the_study_begins_and_ends_each_launch(swept: tuple[Plan, Path, Seen]) -> None:
    plan, folder, _ = swept
    for repeat in (1, 2):
        ours = [record for record in store.read_study(folder) if record.trial.repeat == repeat]
        at = sorted((block.at, record.configuration) for record in ours for block in record.ranks[0].blocks)
        assert at[0][1] == at[-1][1] == plan.sentinel


def test_configurations_of_one_launch_alternate(swept: tuple[Plan, Path, Seen]) -> None:
    _, folder, _ = swept
    first = [record for record in store.read_study(folder) if record.trial.repeat == 1]
    blocks = sorted((block.at, block.round) for record in first for block in record.ranks[0].blocks)
    assert [round for _, round in blocks] == [0, 0, 0, 1, 1, 1]


def test_launches_leave_their_logs_and_no_key(swept: tuple[Plan, Path, Seen]) -> None:
    _, folder, _ = swept
    launches = sorted(path.relative_to(folder / "launches") for path in folder.glob("launches/*/*/"))
    assert [str(path)[:6] for path in launches] == ["1/0-0-", "1/0-1-", "2/0-0-", "2/0-1-"]
    assert [path.name[4:] for path in launches].count("torch_ddp") == 2
    for path in launches:
        assert (folder / "launches" / path / "log.txt").exists()
        assert set(store.load(folder / "launches" / path / "request.json")) == {"script", "trials"}
    assert not list(folder.glob("launches/*/begun"))
    records = [store.load(path) for path in sorted(folder.glob("launches/*/launch.json"))]
    assert [record["number"] for record in records] == [1, 2]
    for record in records:
        assert [group["state"] for group in record["groups"]] == ["finished"] * 2
        assert sorted(len(group["members"]) for group in record["groups"]) == [1, 2]


def test_a_second_run_runs_nothing_again(swept: tuple[Plan, Path, Seen]) -> None:
    plan, folder, first = swept
    again, _ = run(plan, folder)
    assert again.started == [] and sorted(again.kept) == sorted(record.id for record in first.ended)


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
def test_one_that_fails_says_why_alone_and_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_ROOT", str(tmp_path / "nothing"))
    broken = dataclasses.replace(SINGLE, data="cifar10")
    seen, _ = run(plan_of(DDP, SINGLE, broken), tmp_path / "results")
    ended = {(record.trial.framework, record.trial.data): record for record in seen.ended}
    failed = ended.pop(("single", "cifar10"))
    assert failed.status == "failed" and failed.reason.startswith("rank 0: ")
    assert [record.status for record in ended.values()] == ["ok", "ok"]
    assert [trial.framework for trial in seen.built].count("torch_ddp") == 1, "another group stays alive"
    groups = sorted(path.name[4:] for path in (tmp_path / "results" / "launches" / "1").glob("*/"))
    assert groups == ["single", "single", "torch_ddp"]


class Interrupting(Seen):
    """Interrupts as a block begins."""

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block = block

    def block_begins(self, launch: int, block: int, of: int) -> None:
        if block == self.block:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.long
@pytest.mark.parametrize("rounds", [1, 3])
def test_an_interruption_ends_all_launches_and_keeps_what_has_rounds_enough(rounds: int, tmp_path: Path) -> None:
    plan = plan_of(SINGLE, DDP, rounds=1000)
    seen, job = Interrupting(rounds + 1), Run(plan, tmp_path)
    job.open()
    with process.Interruption() as interruption:
        job.run(seen, interruption)
    assert interruption.signal == signal.SIGINT
    commands = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(tmp_path.resolve()) in command]
    records = list(store.read_study(tmp_path))
    assert sorted(record.id for record in records) == sorted(record.id for record in seen.ended) == sorted(job.records)
    assert len(records) == (0 if rounds == 1 else 2)
    for record in records:
        assert (record.status, record.exit_code, len(record.ranks[0].blocks)) == ("ok", None, rounds)
        assert record.notes == [f"its launch ended after {rounds} of 1000 blocks: the study was stopped"]
        assert record.ranks[0].phases and record.ranks[0].phases.forward_seconds
    again = Interrupting(1)
    with process.Interruption() as interruption:
        Run(plan, tmp_path, records=dict(job.records)).run(again, interruption)
    assert len(again.kept) == len(records)


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
@pytest.mark.parametrize("room_bytes", [0.0, 1.0], ids=["not to be tried", "less than it takes"])
def test_what_has_no_room_has_a_launch_of_its_own_beside_the_baseline(
    room_bytes: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_launch.Launch, "_room", lambda self, built: math.inf if len(built) < 2 else room_bytes)
    others = [DDP, dataclasses.replace(DDP, framework="torch_fsdp2", launcher="torchrun")]
    plan = plan_of(*others, SINGLE)
    plan = dataclasses.replace(plan, study=dataclasses.replace(plan.study, baseline={"framework": "single"}))
    seen, _ = run(plan, tmp_path)
    assert [record.status for record in seen.ended] == ["ok"] * 3, "whoever watches hears of what was planned"
    records = list(store.read_study(tmp_path))
    launches = [{r.trial.framework for r in records if r.launch.startswith(f"{n}/")} for n in (1, 2)]
    assert sorted(map(sorted, launches)) == [["single", "torch_ddp"], ["single", "torch_fsdp2"]]
    assert sorted(r.trial.repeat for r in records if r.trial.framework == "single") == [1, 2]
    again, _ = run(plan, tmp_path)
    assert again.started == [] and len(again.kept) == 3
    narrow, _ = run(plan, tmp_path, retry=frozenset({"ok"}), where={"framework": "torch_ddp"})
    assert narrow.started == [r.id for r in seen.ended if r.trial.framework == "torch_ddp"]
    assert len(list(store.read_study(tmp_path))) == 4, "whoever narrows a study gets what was asked for alone"


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
def test_gates_that_one_launch_can_run_share_it_and_one_that_fails_is_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("DATA_ROOT", str(tmp_path / "nothing"))
    trials = [DDP, dataclasses.replace(DDP, allreduce="fp16")]
    broken = [dataclasses.replace(DDP, data="cifar10")]
    asked = gates_of(*broken, *trials)
    seen, _ = run(asked, tmp_path / "results")
    ended = {record.id: record for record in store.read_study(tmp_path / "results")}
    assert len(ended) == len(seen.ended) == len(asked.gates) == 3
    failed = [record for record in ended.values() if record.trial.data == "cifar10"]
    assert [(record.status, record.launch, record.parity) for record in failed] == [("failed", "", "")]
    assert all("cifar10" in record.reason for record in failed)
    assert [path.name for path in (tmp_path / "results" / "launches").iterdir()] == ["gates-1"], "one launch for all"
    others = [record for record in ended.values() if record.trial.data != "cifar10"]
    assert {(record.status, record.launch, record.parity) for record in others} == {("ok", "gates-1", "passed")}
    assert all(record.launch_seconds is None and 0 < (record.total_seconds or 0) < 600 for record in others)
    again, _ = run(asked, tmp_path / "results")
    assert again.started == []


@pytest.mark.long
@pytest.mark.usefixtures("forked_starts")
def test_gates_that_mpi_starts_share_one_launch_too(tmp_path: Path) -> None:
    """Its processes join once, and train one gate after the other."""
    if not installed("horovod"):
        pytest.skip("horovod is not installed")
    horovod = dataclasses.replace(DDP, framework="horovod", launcher="horovodrun", controller="mpi")
    asked = gates_of(horovod, dataclasses.replace(horovod, allreduce="fp16"))
    run(asked, tmp_path / "results")
    ended = list(store.read_study(tmp_path / "results"))
    assert len(ended) == len(asked.gates) == 2
    assert {(record.status, record.launch, record.parity) for record in ended} == {("ok", "gates-1", "passed")}
