"""Which model is tested, and what a training writes for other tools while it runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb_offline
from tiny_cifar import tiny_cifar
from tiny_trainings import Trainings

from scaling_study.targets import Target
from scaling_study.train import loop
from scaling_study.train.log import SIGNS, Log, last_sign
from scaling_study.train.loop import Loop
from scaling_study.trial import Trial

pytestmark = pytest.mark.slow
WORSE_AND_WORSE = [  # what one step has learned is lost again
    *("--model", "resnet8", "--device", "cpu", "--cores-per-worker", "1", "--batch-per-worker", "90"),
    *("--train-optimizer", "sgd", "--learning-rate", "0.5", "--train-evaluate-every", "0.25"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with tiny_cifar(tmp_path_factory.mktemp("data")) as folder:
        yield folder


def trained(folder: Path, data: Path, *flags: str) -> dict[str, Any]:
    trainings = Trainings(lambda name: folder, WORSE_AND_WORSE, DATA_ROOT=str(data))
    (rank,) = trainings("single", 1, *flags)
    return {**vars(rank.training), "output": (folder / "output").read_text()}


def test_a_training_that_diverges_is_recorded_as_one(data: Path, tmp_path: Path) -> None:
    """Also where its validation loss is no number before its training loss is, and a checkpoint is due."""
    training = trained(
        tmp_path, data, "--train-steps", "6", "--learning-rate", "1e30", "--train-target", "accuracy=0.9"
    )
    assert training["ended_by"] == "diverged" and training["reached"] is None
    assert training["rows"][-1]["train_loss"] is None


def test_with_patience_the_best_model_is_tested_and_not_the_last(data: Path, tmp_path: Path) -> None:
    patient = trained(tmp_path / "patient", data, "--train-epochs", "30", "--train-patience", "3")
    best, last = patient["best_step"], patient["steps"]
    assert patient["ended_by"] == "patience" and best < last
    assert patient["evaluated"]["step"] == best and f"Test of the model after step {best}" in patient["output"]
    until_then = trained(tmp_path / "short", data, "--train-steps", str(best))
    until_the_end = trained(tmp_path / "long", data, "--train-steps", str(last))
    assert patient["evaluated"] == until_then["evaluated"]
    assert patient["evaluated"]["loss"] != until_the_end["evaluated"]["loss"]
    assert until_the_end["evaluated"]["step"] == last


@pytest.mark.parametrize("library", ["tensorboard", "wandb"])
def test_other_tools_read_each_evaluation_while_it_runs(library: str, data: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} not installed (pip install 'scaling-study[export]')")
    training = trained(tmp_path, data, "--train-steps", "3", "--train-log", library)
    losses = {row["steps"]: row["train_loss"] for row in training["rows"]}
    assert READ[library](tmp_path) == pytest.approx(losses) and len(losses) == 3
    assert training["seconds"]["log"] > 0


def events(folder: Path) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {event.step: event.value for event in accumulator.Scalars("train_loss")}


def history(folder: Path) -> dict[int, float]:
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    return {row["_step"]: row["train_loss"] for row in wandb_offline.rows(file)}


READ = {"tensorboard": events, "wandb": history}


def test_a_training_that_came_to_its_end_is_none_to_go_on_with(data: Path, tmp_path: Path) -> None:
    """By hand, twice into one folder: the second was not killed, and made no step twice."""
    for _ in range(2):
        training = trained(tmp_path, data, "--train-steps", "2")
        assert (training["steps"], training["resumed"], training["lost_steps"]) == (2, 0, 0)


def test_a_start_that_is_killed_while_it_waits_for_the_other_ranks_is_counted(tmp_path: Path) -> None:
    """Rank 0 waited for rank 1 for longer than it lived, on a slow machine: the next start said it was the first."""

    class Killed(Exception):
        pass

    def latest() -> None:  # where the ranks agree for the first time
        raise Killed

    loop = SimpleNamespace(
        folder=tmp_path, checkpoints=SimpleNamespace(latest=latest), log=Log(tmp_path, 0, Trial("single", "resnet8")),
        signs=lambda: dict.fromkeys(SIGNS, 0),
    )  # fmt: skip
    with pytest.raises(Killed):
        Loop.resume(loop)  # type: ignore[arg-type]
    assert last_sign(tmp_path) == {"steps": 0, "resumed": 0, "lost_steps": 0}
    loop.log.progress(steps=8, resumed=3, lost_steps=1)
    with pytest.raises(Killed):
        Loop.resume(loop)  # type: ignore[arg-type]
    assert last_sign(tmp_path) == {"steps": 8, "resumed": 3, "lost_steps": 1}


@pytest.mark.parametrize(
    ("scored", "loss", "ended", "over"),
    [
        (0.7, 1.0, loop.SECONDS, loop.TARGET),
        (0.7, float("nan"), loop.SECONDS, loop.DIVERGED),
        (0.5, 1.0, loop.SECONDS, loop.SECONDS),
        (0.5, 1.0, loop.ON, loop.STEPS),
    ],
)
def test_a_target_that_is_met_counts_also_where_the_time_is_over(scored, loss, ended, over) -> None:
    recipe = SimpleNamespace(target=Target("accuracy", 0.6), metric="accuracy", patience=None, steps=9)
    progress = SimpleNamespace(rows=[{"accuracy": scored, "train_loss": loss}], steps=9)
    training = SimpleNamespace(recipe=recipe, progress=progress, ranks=SimpleNamespace(agree=lambda value: value))
    training.verdict = lambda: Loop.verdict(training)
    assert Loop.over(training, ended) == over
