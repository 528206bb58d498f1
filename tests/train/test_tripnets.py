"""Tripnets train alike by every framework, at rates of their parts' own, and say what was trained and what was not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiny_trainings import Trainings

from scaling_study.records.schema import RankReport
from scaling_study.targets import TRIPLETS
from scaling_study.workloads.surgical_scenes import Scenes, write

pytestmark = pytest.mark.slow
FLAGS = [
    *("--model", "tripnet_squeezenet", "--image-size", "32", "--image-width", "56", "--device", "cpu"),
    *("--cores-per-worker", "1", "--train-steps", "5", "--train-optimizer", "adamw", "--learning-rate", "0.002"),
]
OF_PARTS = ["--precision", "fp64", "--part-learning-rates", "backbone=0.0005,verb=0.01"]
HEADS, LOSSES = ["instrument", "verb", "target", "triplet"], ["loss_i", "loss_v", "loss_t", "loss_ivt"]


Trained = Callable[..., list[RankReport]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Ten videos of four frames: two test, one validates, seven are trained on, 3 steps an epoch."""
    folder = tmp_path_factory.mktemp("data") / "scenes"
    write(folder, Scenes(frames=40, videos=10, height=32, width=56), processes=1)
    trainings = Trainings(tmp_path_factory.mktemp, FLAGS, DATA_PATH=str(folder))
    return lambda framework, workers, *flags: trainings(
        framework, workers, "--batch-per-worker", str(8 // workers), *flags
    )


@pytest.fixture(scope="module")
def by_ddp(trained: Trained) -> list[RankReport]:
    return trained("torch_ddp", 2, *OF_PARTS)


def test_each_row_has_the_heads_losses_of_all_ranks_and_every_metric(by_ddp: list[RankReport]) -> None:
    rows = [rank.training.rows for rank in by_ddp]
    assert [row["steps"] for row in rows[0]] == [3, 5]
    for ours, theirs in zip(*rows, strict=True):
        assert [ours[name] for name in LOSSES] == [theirs[name] for name in LOSSES]
        assert sum(ours[name] for name in LOSSES) == pytest.approx(ours["train_loss"], rel=1e-12)
    assert {*TRIPLETS, "loss"} <= set(rows[0][-1])
    assert by_ddp[0].data_source == "surgical_scenes (synthetic scenes)"
    assert by_ddp[0].training.splits == {"train": {"train": 28}, "validation": {"train": 4}, "test": {"test": 8}}


def test_groups_are_the_parts_at_their_rates_and_each_part_moved(by_ddp: list[RankReport]) -> None:
    groups = {group.name: group.learning_rate for group in by_ddp[0].training.groups}
    assert groups == {**dict.fromkeys(HEADS, 0.002), "verb": 0.01, "backbone": 0.0005}
    moved = by_ddp[0].training.moved
    assert set(moved) == set(groups) and all(value > 0 for value in moved.values())
    assert moved["verb"] > moved["target"] > moved["backbone"]


@pytest.mark.parametrize("framework", ["fairscale_oss", "torch_fsdp2"])
def test_sharded_frameworks_take_the_very_steps_of_ddp(
    framework: str, by_ddp: list[RankReport], trained: Trained
) -> None:
    ours, theirs = (ranks[0].training for ranks in (trained(framework, 2, *OF_PARTS), by_ddp))
    for row, right in zip(ours.rows, theirs.rows, strict=True):
        assert figures(row) == pytest.approx(figures(right), rel=1e-9)
    assert ours.moved == pytest.approx(theirs.moved, rel=1e-6)


def figures(row: dict[str, Any]) -> dict[str, float]:
    return {name: row[name] for name in ("train_loss", *LOSSES, *TRIPLETS, "loss")}


def test_a_frozen_backbone_is_said_to_be_and_computes_each_frame_once(trained: Trained) -> None:
    (rank,) = trained("single", 1, "--freeze", "backbone")
    *heads, backbone = rank.training.groups
    assert [group.name for group in heads] == HEADS and not any(group.asked for group in heads)
    assert (backbone.name, backbone.learning_rate, backbone.asked) == ("backbone", 0.0, True)
    assert rank.parameters == sum(group.parameters for group in heads)
    assert rank.parameters_all == rank.parameters + backbone.parameters
    moved = rank.training.moved
    assert moved["backbone"] == 0.0 and all(moved[name] > 0 for name in HEADS)
    (note,) = [note for note in rank.notes if note.startswith("features of the frozen backbone")]
    assert "frames, computed once in" in note and "not kept" not in note
