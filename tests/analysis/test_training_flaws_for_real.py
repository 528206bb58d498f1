"""Each flaw of a published training is committed once by a real one, and found in its record by the analysis.

All runs are one results folder: what has no flaw, or has its remedy, must not be named beside what has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from planted import Planted, plant
from tiny_cifar import tiny_cifar
from trained_for_real import train

from analysis.findings import Finding
from analysis.frames import results
from analysis.views import catalog
from scaling_study.trial import Trial

pytestmark = pytest.mark.slow
OF_A_TRAINING = {*(f"F{number}" for number in range(18, 29)), "F6", "F11", "F12", "F13"}
TRAIN = 200  # images
RECIPE = (  # two epochs of three steps of 40 samples, of the 120 that are not held out
    *(("train_epochs", 2), ("train_validation", 0.4), ("train_target", "accuracy=0.999"), ("train_optimizer", "sgd")),
    *(("learning_rate", 0.05), ("train_evaluate_every", 1.0)),
)
SCALED = (("train_scale_learning_rate", "linear"), ("train_reference_batch", 40))
GROUPNORM = "resnet8_groupnorm"


@dataclass(frozen=True)
class Run:
    """One real training. `decay`: tells recipes apart; what is compared with each other shares one."""

    framework: str
    decay: float
    flaw: str = "none"
    batch: int = 40  # of all workers
    keys: tuple[tuple[str, object], ...] = ()
    model: str = GROUPNORM

    @property
    def trial(self) -> Trial:
        workers = 1 if self.framework == "single" else 2
        keys = (*RECIPE, ("train_weight_decay", self.decay), *self.keys)
        allreduce = "fp32" if workers > 1 else "none"
        made = Planted(self.framework, self.model, self.batch // workers, workers, allreduce, keys=keys)
        return made.trial()


SOUND = [
    Run("single", 0.1), Run("torch_ddp", 0.1),
    Run("single", 0.2, keys=SCALED), Run("torch_ddp", 0.2, keys=SCALED, batch=80),  # F26's remedy
    Run("torch_fsdp2", 0.1),
]  # fmt: skip
ONE_UNIT = Run("torch_fsdp2", 0.1, keys=(("wrap", "none"),))
FROZEN, SELECTED, JOINED, RESUMED, REPEATED = (
    Run("single", decay, flaw) for decay, flaw in enumerate(("F11", "F18", "F22", "F20", "F25"), 3)
)
LAST_BATCH, MULTIPLIED = Run("single", 0.3, "F12"), Run("torch_ddp", 0.3, "F19")
STARVED, UNREDUCED = Run("single", 0.4, "F28"), Run("torch_ddp", 0.4, "F27")
FEWER_STEPS = [
    Run(name, 0.5, batch=batch, keys=(("learning_rate", 0.02),)) for name, batch in (("single", 40), ("torch_ddp", 80))
]
UNLIKE_PRECISION = [
    Run("single", 0.6, model="resnet8"), Run("torch_ddp", 0.6, model="resnet8", keys=(("precision", "bf16"),))
]  # fmt: skip
FLAWS = {  # -> whom its findings name, and what one of them says
    "F11": ([FROZEN], "at a learning rate of 0: 1 ("),
    "F12": ([LAST_BATCH], "that of the last 1 of 3 batches"),
    "F18": ([SELECTED], "61 samples of the test set are in the validation set"),
    "F19": ([LAST_BATCH, MULTIPLIED], "0.05 in"),
    "F20": ([RESUMED], "Went on from a checkpoint whose"),
    "F21": (UNLIKE_PRECISION, "single in fp32; torch_ddp in bf16"),
    "F22": ([JOINED], "61 samples of the test set are trained on"),
    "F23": (FEWER_STEPS, "(single 40; torch_ddp 80)"),
    "F24": ([ONE_UNIT], "Sharded as one unit"),
    "F25": ([REPEATED], "2 epochs read their samples in 1 order"),
    "F26": (FEWER_STEPS, "global batches of 40 and 80 samples at one learning rate (0.02)"),
    "F27": ([UNREDUCED], "Figures are over 31 of the 61 samples of the test set"),
    "F28": ([STARVED, UNREDUCED], "of a step for its batch"),
}
RUNS = list(dict.fromkeys([*SOUND, *(run for runs, _ in FLAWS.values() for run in runs)]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("results")
    plant(folder, [], baseline={"framework": "single"}, scaling="strong")
    with tiny_cifar(tmp_path_factory.mktemp("data"), TRAIN) as data:
        for run in RUNS:
            flaws = ("F20-first", "F20") if run.flaw == "F20" else (run.flaw,)
            train(run.trial, folder / "trials" / run.trial.id, {"DATA_ROOT": str(data)}, flaws)
        yield folder


@pytest.fixture(scope="module")
def seen(folder: Path) -> list[Finding]:
    return [one for one in catalog.all_findings(results.read(folder)) if one.flaw in OF_A_TRAINING]


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_of_a_real_training_is_found_and_nobody_else_is_named(seen: list[Finding], flaw: str) -> None:
    runs, text = FLAWS[flaw]
    (found,) = [one for one in seen if one.flaw == flaw]
    assert text in found.text
    assert set(found.configurations) == {run.trial.configuration for run in runs}


def test_sound_trainings_are_not_named(seen: list[Finding]) -> None:
    sound = {run.trial.configuration for run in SOUND}
    assert [one for one in seen if sound & set(one.configurations)] == []
    assert {one.flaw for one in seen} == {*FLAWS, "F6"}  # F6: the one that waits for its data is also this
