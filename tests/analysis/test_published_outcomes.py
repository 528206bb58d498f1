"""Published trainings beside those of a study of the same name: what is compared, what is not, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import Planted
from planted_trainings import TrainedIn, plant_trained

from analysis.frames.results import Results
from analysis.published import outcomes, ratios
from analysis.published.outcomes import NAMES, of_study, published
from scaling_study.trial import Trial

AS_PUBLISHED = {
    "train_target": None, "train_epochs": 400, "train_patience": 50, "learning_rate": 0.004, "train_loop": "native",
    "precision": "fp16", "train_optimizer": None,
}  # fmt: skip
SPLITS = {"train": {"train": 45_000}, "validation": {"train": 5_000}, "test": {"test": 10_000}}
SAYS = {"target": "", "reached": None, "ended_by": "patience", "splits": SPLITS, "selected_on": "validation"}


def trained(model: str = "vit_small_dataset", workers: int = 3, batch: int = 512, **keys: Any) -> TrainedIn:
    given = tuple({**AS_PUBLISHED, **keys}.items())
    planted = Planted("deepspeed_zero", model, batch, workers, "fp16" if workers > 1 else "none", keys=given)
    return TrainedIn(planted, [None, None, None], stopped=6_000, accuracy=0.80, says=SAYS)


def planted(folder: Path, *many: TrainedIn, study: str = "cifar10deepspeed") -> Results:
    return plant_trained(folder, list(many), study=study)


def rows_of(results: Results, training: str = "ViT for small data sets") -> Any:
    rows = outcomes.published_outcomes_table(results)
    return rows[rows.training == training].set_index("figure")


def test_the_mapping_is_whole_and_every_flaw_has_a_reason() -> None:
    keys = {"framework", *(name for name in vars(Trial()) if name != "window"), "global_batch", "weights"}
    for training in published():
        assert training.figures and set(training.figures) <= set(NAMES), training.name
        assert set(training.keys) <= keys and training.flaws, training.name
        assert set(training.flaws) <= set(ratios.FLAWS) and all(18 <= int(flaw[1:]) <= 28 for flaw in training.flaws)
    assert {training.study for training in published()} == {"cifar10deepspeed", "lightning_hydra_timm", "w251_hw9"}
    earned = {flaw for training in published() for flaw in training.flaws}
    assert earned == {f"F{number}" for number in range(18, 29)}
    (vit, *_) = of_study("cifar10deepspeed")
    assert vit.figures == pytest.approx(
        {"accuracy": 0.8462, "loss": 0.51888203125, "epoch_seconds": 2.23, "epochs": 175, "seconds": 360}
    )
    assert of_study("lightning-hydra-timm") == of_study("Lightning_Hydra_timm") and not of_study("time-to-accuracy")


def test_the_same_configuration_is_compared_in_accuracy_and_never_in_seconds(tmp_path: Path) -> None:
    other = trained(workers=1, train_loop=None)
    made = planted(tmp_path, trained(), other)
    rows = rows_of(made)
    assert rows.configuration.nunique() == 1 and set(rows.differs) == {""}
    assert rows.measured["accuracy"] == pytest.approx(0.802) and rows.seeds["accuracy"] == 3
    assert rows.difference["accuracy"] == pytest.approx(0.802 - 0.8462)
    assert rows.difference["loss"] == pytest.approx(1.1 - 0.51888203125)
    assert rows.difference[["seconds", "epoch_seconds", "epochs"]].isna().all()
    assert rows.measured["seconds"] == pytest.approx(600) and rows.measured["epoch_seconds"] == pytest.approx(40)


def test_another_model_has_no_difference_and_says_why(tmp_path: Path) -> None:
    small = trained("vit_small_dataset_tiny", 2, 256, train_epochs=2, precision="fp32", train_patience=4,
                    train_evaluate_every=0.5)  # fmt: skip
    made = planted(tmp_path, small)
    rows = rows_of(made)
    assert rows.difference.isna().all() and rows.measured["accuracy"] == pytest.approx(0.802)
    (differs,) = set(rows.differs)
    assert "2 workers instead of 3 workers; 512 samples a step instead of 1,536 samples a step" in differs
    assert "2 workers" not in rows.decides["accuracy"]


def test_a_test_set_of_their_own_is_compared_with_nothing(tmp_path: Path) -> None:
    """F22, also where nothing else differs."""
    keys = {"train_epochs": 25, "train_patience": None, "learning_rate": 0.001, "precision": "fp32"}
    one = trained("resnet8", 4, 320, **keys)
    planted_ddp = replace(one.of, framework="lightning_ddp", allreduce="fp32")
    rows = rows_of(planted(tmp_path, replace(one, of=planted_ddp), study="lightning_hydra_timm"), "ViT-B/32, DDP")
    assert rows.difference.isna().all()
    assert rows.decides["accuracy"].startswith(
        "their test set is one of their own, split anew (F22); resnet8 instead of"
    )
    assert "random instead of pretrained weights" in rows.decides["accuracy"]


def test_what_is_not_there_is_said_and_two_that_are_as_near_are_both_shown(tmp_path: Path) -> None:
    alike = [replace(trained(workers=count), accuracy=0.5) for count in (1, 2)]
    assert rows_of(planted(tmp_path / "two", *alike)).configuration.nunique() == 2
    missing = planted(tmp_path / "none", trained(), study="w251-hw9")
    (why,) = set(outcomes.published_outcomes_table(missing).decides[lambda all: all.str.contains("torch_ddp")])
    assert why == "no torch_ddp: nothing was trained here that it would be"
