"""Each flaw of a published training is committed once by a real one, and found in its record by the analysis.

All runs are one results folder: what has no flaw, or has its remedy, must not be named beside what has. A baseline that
waits for photographs has a folder of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import forked
import pytest
from planted import Planted, plant
from tiny_cifar import tiny_cifar

from analysis.findings import Finding
from analysis.frames import results
from analysis.views import catalog
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.processes.process import Exit
from scaling_study.records import outcome, store
from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT, data_root
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


def train(trial: Trial, folder: Path, env: Mapping[str, str], flaws: Sequence[str] = ("none",)) -> None:
    """Run it once for each of `flaws` (tests/train/flawed.py), one after the other; its record, as a sweep would judge
    and write it."""
    launcher = ["torchrun", "--nproc-per-node", str(trial.workers)] if trial.workers > 1 else [sys.executable]
    script = [str(CHECKOUT / FRAMEWORKS[trial.framework].script), *trial.to_argv(), "--record", str(folder)]
    for flaw in flaws:
        done = forked.run([*launcher, str(CHECKOUT / "tests/train/flawed.py"), flaw, *script], env)
    judged = outcome.judge(trial, folder, Exit(done.returncode, 1.0))
    assert judged.status == "ok", f"{judged.reason} {done.stderr[-3000:]}"
    record = Record(
        study="planted", id=trial.id, configuration=trial.configuration, trial=trial, status="ok",
        started_at="2026-01-31T10:00:00+00:00", command="python ...", machine={}, ranks=list(judged.ranks),
        launch_seconds=1.0, total_seconds=2.0, exit_code=0, planned_repeats=1,
    )  # fmt: skip
    store.write_record(folder, record)


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


MINI = data_root() / "imagenet-mini"
OF_PHOTOGRAPHS = (
    *(("data", "images"), ("train_steps", 10), ("train_validation", 0.1), ("train_augmentation", "resized_crop")),
    *(("train_optimizer", "sgd"), ("learning_rate", 0.05)),
)


def of_photographs(workers: int, side: int) -> Trial:
    """A core decodes one of these photographs in 0.3 ms; resnet8 learns from it in 0.2 ms at 8 pixels, in 5 at 64."""
    framework, allreduce = ("torch_ddp", "fp32") if workers > 1 else ("single", "none")
    keys = (*OF_PHOTOGRAPHS, ("image_size", side))
    return Planted(framework, "resnet8", 25, workers, allreduce, keys=keys).trial()


@pytest.mark.skipif(not (MINI / "val").is_dir(), reason=f"needs imagenet-mini in {data_root()}; set DATA_ROOT")
def test_a_baseline_that_waits_for_photographs_is_found(tmp_path: Path) -> None:
    bound, sound = [of_photographs(workers, 8) for workers in (1, 2)], of_photographs(1, 64)
    plant(tmp_path, [], baseline={"framework": "single"})
    for one in (*bound, sound):
        train(one, tmp_path / "trials" / one.id, {"DATA_PATH": str(MINI)})
    found = {one.flaw: one for one in catalog.all_findings(results.read(tmp_path))}
    baseline, sped_up = (one.configuration for one in bound)
    assert set(found["F28"].configurations) == {baseline, sped_up}
    assert baseline in found["F6"].configurations and sound.configuration not in found["F6"].configurations
    assert "of a step for its batch, so speed-ups over it are in part those of its loader" in found["F28"].text
