"""A baseline that waits for photographs (F28) is found, and one beside it that does not is not named."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import Planted, plant
from trained_for_real import train

from analysis.frames import results
from analysis.views import catalog
from scaling_study.settings import data_root
from scaling_study.trial import Trial

MINI = data_root() / "imagenet-mini"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (MINI / "val").is_dir(), reason=f"needs imagenet-mini in {data_root()}; set DATA_ROOT"),
]
RECIPE = (
    *(("data", "images"), ("train_steps", 10), ("train_validation", 0.1), ("train_augmentation", "resized_crop")),
    *(("train_optimizer", "sgd"), ("learning_rate", 0.05)),
)


def trial(workers: int, side: int) -> Trial:
    """A core decodes one of these photographs in 0.3 ms; resnet8 learns from it in 0.2 ms at 8 pixels, in 5 at 64."""
    framework, allreduce = ("torch_ddp", "fp32") if workers > 1 else ("single", "none")
    keys = (*RECIPE, ("image_size", side))
    return Planted(framework, "resnet8", 25, workers, allreduce, keys=keys).trial()


def test_a_baseline_that_waits_for_photographs_is_found(tmp_path: Path) -> None:
    bound, sound = [trial(workers, 8) for workers in (1, 2)], trial(1, 64)
    plant(tmp_path, [], baseline={"framework": "single"})
    for one in (*bound, sound):
        train(one, tmp_path / "trials" / one.id, {"DATA_PATH": str(MINI)})
    found = {one.flaw: one for one in catalog.all_findings(results.read(tmp_path))}
    baseline, sped_up = (one.configuration for one in bound)
    assert set(found["F28"].configurations) == {baseline, sped_up}
    assert baseline in found["F6"].configurations and sound.configuration not in found["F6"].configurations
    assert "of a step for its batch, so speed-ups over it are in part those of its loader" in found["F28"].text
