"""Numbers of launches, and what is kept of one whose driver died."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scaling_study.launch import launch_folders
from scaling_study.launch.launch_folders import GroupRecord, GroupState
from scaling_study.records import results, schema, store
from scaling_study.records.schema import RankReport, Record
from scaling_study.trial import Trial, Window

TRIAL = Trial(
    model="resnet8", batch_per_worker=4, data="synthetic", device="cpu", warm=True,
    window=Window(4, 1, 0.0, None, None, rounds=8, block_seconds=0.5),
)  # fmt: skip


def begun(trial: Trial, **changes: Any) -> Record:
    about = {"study": "a study", "id": trial.id, "configuration": trial.configuration, "status": "cancelled"}
    return Record(**{**about, "trial": trial, **changes})


@dataclass
class Killed:
    """A launch whose driver was killed, as today's program leaves it or as one without launch.json did."""

    results: Path
    older: bool

    @property
    def folder(self) -> Path:
        return self.results / "launches" / "3"

    def left(self, trial: Trial, report: RankReport, blocks: int, group: str = "0-0-single") -> None:
        """A trial after so many blocks."""
        if not self.folder.exists():
            launch_folders.begin(self.folder, [])
        store.write_json(self.folder / "begun" / f"{trial.id}.json", begun(trial).to_dict())
        (self.folder / group).mkdir(exist_ok=True)
        with (self.folder / group / "blocks.jsonl").open("a") as stream:
            stream.writelines(json.dumps({"trial": trial.id, "round": block}) + "\n" for block in range(blocks))
        listed = [schema.Block(block, 2, 1.0) for block in range(blocks)]
        store.write_rank(
            self.results / "trials" / trial.id,
            dataclasses.replace(
                report, step_seconds=[0.1] * 2 * blocks, samples_seen=8 * blocks, samples_per_step=4, blocks=listed
            ),
        )
        if self.older:
            (self.folder / "launch.json").unlink(missing_ok=True)
            return
        launch = launch_folders._read(self.folder, {})
        batch, number, framework = group.split("-")
        record = GroupRecord(int(number), framework, [trial.id], GroupState.TAKING_TURNS, batch=int(batch))
        launch.groups.append(record)
        launch.write()

    def ended(self, trial: Trial, why: str, blocks: int | None, at_fault: bool) -> None:
        """The group of a trial ended: after so many blocks it is left behind; None: it has failed."""
        path = self.folder / "begun" / f"{trial.id}.json"
        if self.older and at_fault:
            path.unlink()
        elif self.older:
            name, note = f"3/0.{blocks}-1-single", f"its launch ended after {blocks} of 8 blocks: {why}"
            store.write_json(path, {**store.load(path), "launch": name, "notes": [note]})
        else:
            launch = launch_folders._read(self.folder, {})
            group = next(each for each in launch.groups if trial.id in each.members)
            group.blocks, group.why, group.at_fault = blocks, why, [trial.id] if at_fault else []
            launch.move(group, GroupState.FAILED if blocks is None else GroupState.LEFT_BEHIND)


@pytest.fixture(params=[False, True], ids=["launch.json", "names of folders"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Killed:
    return Killed(tmp_path, request.param)


@pytest.mark.parametrize(("rounds", "kept"), [(1, False), (2, True), (7, True)])
def test_a_launch_whose_driver_was_killed_is_one_of_fewer_rounds(
    rounds: int, kept: bool, killed: Killed, tmp_path: Path, rank_report: Callable[..., RankReport]
) -> None:
    killed.left(TRIAL, rank_report(), rounds)
    found = launch_folders.kept(tmp_path)
    assert set(found) == ({TRIAL.id} if kept else set())
    records = list(store.read_study(tmp_path))
    assert [record.id for record in records] == list(found)
    for record in records:
        assert (record.status, record.launch) == ("ok", "3/0-0-single")
        assert record.notes == [f"its launch ended after {rounds} of 8 blocks: its driver ended"]
    assert not (tmp_path / "launches" / "3" / "begun").exists() and launch_folders.kept(tmp_path) == {}


def test_all_of_a_launch_have_the_same_rounds(
    killed: Killed, tmp_path: Path, rank_report: Callable[..., RankReport]
) -> None:
    """Those of another batch have their own."""
    others = [dataclasses.replace(TRIAL, batch_per_worker=batch) for batch in (8, 16)]
    killed.left(TRIAL, rank_report(), 4)
    killed.left(others[0], rank_report(), 5, "0-1-single")
    killed.left(others[1], rank_report(), 8, "1-2-single")
    for trial in others:
        report = store.read_ranks(tmp_path / "trials" / trial.id, 1)[0]
        samples = {"samples_per_step": trial.batch_per_worker, "own_cpu_seconds": 8.0}
        seen = len(report.step_seconds) * trial.batch_per_worker
        store.write_rank(tmp_path / "trials" / trial.id, dataclasses.replace(report, **samples, samples_seen=seen))
    assert len(launch_folders.kept(tmp_path)) == 3
    records = {record.trial.batch_per_worker: record for record in store.read_study(tmp_path)}
    assert {batch: len(record.ranks[0].blocks) for batch, record in records.items()} == {4: 4, 8: 4, 16: 8}
    assert [len(records[batch].notes) for batch in (4, 8, 16)] == [1, 1, 0]
    report = records[8].ranks[0]
    assert (len(report.step_seconds), report.samples_seen) == (8, 64)
    assert report.own_cpu_seconds == pytest.approx(8.0 * 4 / 5)


def test_what_ended_before_the_others_has_rounds_of_its_own(
    killed: Killed, tmp_path: Path, rank_report: Callable[..., RankReport]
) -> None:
    """A driver that is killed later takes nothing from those that went on."""
    other = dataclasses.replace(TRIAL, batch_per_worker=8)
    killed.left(TRIAL, rank_report(), 6)
    killed.left(other, rank_report(), 4, "0-1-single")  # its turn in the fourth had come
    [report] = store.read_ranks(tmp_path / "trials" / other.id, 1)
    report = dataclasses.replace(report, samples_per_step=8, samples_seen=8 * len(report.step_seconds))
    store.write_rank(tmp_path / "trials" / other.id, report)
    killed.ended(other, "a rank ended", 3, at_fault=False)
    assert len(launch_folders.kept(tmp_path)) == 2
    records = {record.launch: record for record in store.read_study(tmp_path)}
    blocks = {launch: len(record.ranks[0].blocks) for launch, record in records.items()}
    assert blocks == {"3/0-0-single": 6, "3/0.3-1-single": 3}
    assert records["3/0.3-1-single"].notes == ["its launch ended after 3 of 8 blocks: a rank ended"]


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": [schema.Block(round, 3) for round in range(4)]},
        {"blocks": [schema.Block(round, 0) for round in range(4)]},
        {"blocks": [schema.Block(0, 2) for _ in range(4)]},
        {"step_seconds": []},
        {"tokens_seen": 8, "samples_seen": 0},
    ],
)
def test_reports_that_no_rank_of_ours_left_are_run_again(
    changes: dict[str, Any], killed: Killed, tmp_path: Path, rank_report: Callable[..., RankReport]
) -> None:
    """They keep no results from being opened."""
    killed.left(TRIAL, rank_report(), 4)
    folder = tmp_path / "trials" / TRIAL.id
    store.write_rank(folder, dataclasses.replace(store.read_ranks(folder, 1)[0], **changes))
    pair = dataclasses.replace(TRIAL, seed=2)
    killed.left(pair, rank_report(), 3, "0-1-single")  # so that both are cut
    assert set(launch_folders.kept(tmp_path)) == {pair.id}


def test_ranks_that_were_stopped_in_a_block_are_cut_to_what_both_have(
    tmp_path: Path, rank_report: Callable[..., RankReport]
) -> None:
    pair = dataclasses.replace(TRIAL, framework="torch_ddp", workers=2)
    blocks = [schema.Block(round, 1, 1.0) for round in range(5)]
    for rank, rounds in ((0, 5), (1, 4)):
        report = rank_report(rank=rank, world_size=2, step_seconds=[0.1] * rounds, blocks=blocks[:rounds])
        report = dataclasses.replace(report, samples_per_step=4, samples_seen=4 * rounds, cores=[rank])
        store.write_rank(tmp_path, report)
    launch = launch_folders.LaunchRecord(tmp_path, 3)
    assert not launch.result(pair, tmp_path, 5, "a rank ended") and not launch.result(pair, tmp_path, 1, "a rank ended")
    found = launch.result(pair, tmp_path, 4, "a rank ended")
    assert found and found.notes == ("its launch ended after 4 of 8 blocks: a rank ended",)
    cut, whole = found.ranks
    assert [len(report.blocks) for report in store.read_ranks(tmp_path, 2)] == [5, 4], "what ranks wrote stays"
    assert [len(report.step_seconds) for report in (cut, whole)] == [4, 4]
    assert cut.loss_last is None and whole.loss_last is not None, "of a step that is gone, and of one that is there"


def test_a_command_that_is_cut_keeps_its_share_of_the_samples_that_it_took(
    tmp_path: Path, rank_report: Callable[..., RankReport]
) -> None:
    command = dataclasses.replace(TRIAL, framework="command", command="python t.py", batch_per_worker=4)
    blocks = [schema.Block(round, 1, 1.0) for round in range(4)]
    report = rank_report(step_seconds=[0.1] * 4, blocks=blocks)
    store.write_rank(tmp_path, dataclasses.replace(report, samples_per_step=4, samples_seen=14))  # 4, 4, 4, 2
    found = launch_folders.LaunchRecord(tmp_path, 3).result(command, tmp_path, 2, "a rank ended")
    assert found and (found.ranks[0].samples_per_step, found.ranks[0].samples_seen) == (4, 7)


@pytest.mark.parametrize("blocks", [None, 4])
def test_what_failed_is_no_launch_of_its_own(
    blocks: int | None, killed: Killed, rank_report: Callable[..., RankReport]
) -> None:
    killed.left(TRIAL, rank_report(), 4)
    killed.ended(TRIAL, "a rank ended", blocks, at_fault=True)
    assert launch_folders.kept(killed.results) == {}


def test_a_group_goes_through_its_states_in_order(tmp_path: Path) -> None:
    launch, group = launch_folders.LaunchRecord(tmp_path, 3), GroupRecord(0, "single", [])
    launch.groups.append(group)
    for state in (GroupState.STARTING, GroupState.WARMING, GroupState.TAKING_TURNS, GroupState.LEFT_BEHIND):
        launch.move(group, state)
        assert store.load(tmp_path / "launch.json")["groups"][0]["state"] == str(state)
    with pytest.raises(ValueError, match="left behind cannot be starting next"):
        launch.move(group, GroupState.STARTING)


def test_what_has_a_record_keeps_it(killed: Killed, tmp_path: Path, rank_report: Callable[..., RankReport]) -> None:
    killed.left(TRIAL, rank_report(), 4)
    store.write_record(tmp_path / "trials" / TRIAL.id, begun(TRIAL, status="oom"))
    assert launch_folders.kept(tmp_path) == {}
    assert [record.status for record in store.read_study(tmp_path)] == ["oom"]


def test_no_number_is_given_twice(tmp_path: Path) -> None:
    assert launch_folders.next_folder(tmp_path, []).name == "1"
    (tmp_path / "launches" / "2").mkdir(parents=True)
    (tmp_path / "launches" / "gates-4").mkdir()
    assert launch_folders.next_folder(tmp_path, []) == tmp_path / "launches" / "3"
    known = results.summarize(begun(TRIAL, launch="7/0-1-single"))
    assert launch_folders.next_folder(tmp_path, [known]).name == "8"
    assert launch_folders.next_folder(tmp_path, [known], "gates-").name == "gates-5"
