"""Predicted seconds to a target: timed runs of one worker, a network and trainings in one study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from planted import Planted, plant
from planted_trainings import CRITICAL, SMALLEST_STEPS, Trained, plant_trainings

from analysis.__main__ import main
from analysis.frames import results
from analysis.prediction.network import CannotPredict, Link, ModelledNetwork
from analysis.prediction.predict import Asked, forecast
from analysis.views import prediction

TIMED = Planted("torch_ddp", "resnet8", 64, 1, "none", 1000.0)
FAST = ModelledNetwork(Link(1e-6, 1e-12))  # costs next to nothing: n workers are n times as fast
TRAINED = [Trained(batch, framework="torch_ddp") for batch in (64, 512)]
MEASURED = [Trained(64, workers=workers, speed=1000.0 * workers) for workers in (2, 4)]


def study(folder: Path, *trained: Trained) -> results.Results:
    """Timed and trained runs in one folder."""
    plant_trainings(folder, trained)
    return results.read(plant(folder, [TIMED], study="trained", seed=1))


def asked(*workers: int, network: ModelledNetwork = FAST) -> Asked:
    return Asked(workers, ("ring",), network=network, straggle=False)


def test_seconds_are_the_samples_of_the_curve_over_the_predicted_throughput(tmp_path: Path) -> None:
    """From one worker and two batch sizes."""
    read = study(tmp_path, *TRAINED)
    found = prediction.expected(read, forecast(read, tmp_path, asked(2, 4, 64)).predictions)
    assert [one.batch for one in found] == [128, 256, 4096] and [one.inside for one in found] == [True, True, False]
    for one in found:
        true = SMALLEST_STEPS * (one.batch + CRITICAL) / (1000.0 * one.prediction.workers)
        low, high = one.seconds.bounds()
        assert low is not None and high is not None and low < true < high
        assert one.seconds.value == pytest.approx(true, rel=0.15) and one.measured is None


def test_a_prediction_uses_nothing_of_what_it_is_held_against(tmp_path: Path) -> None:
    """Trainings at a batch of 128 that need ten times the samples change no prediction at 128."""
    read = study(tmp_path / "sound", *TRAINED, *MEASURED)
    (sound,) = prediction.expected(read, forecast(read, tmp_path / "sound", asked(2)).predictions)
    folder = plant_trainings(tmp_path / "odd", [*TRAINED, MEASURED[1]])
    plant_trainings(folder, [MEASURED[0]], steps=10 * SMALLEST_STEPS)
    plant(folder, [TIMED], study="trained", seed=1)
    read = results.read(folder)
    (odd,) = prediction.expected(read, forecast(read, folder, asked(2)).predictions)
    assert sound.error is not None and odd.error is not None
    assert sound.error.value == pytest.approx(1, abs=0.15)
    assert odd.error.value == pytest.approx(0.1, rel=0.15)


def test_another_precision_on_the_wire_and_another_model_have_no_curve(tmp_path: Path) -> None:
    read = study(tmp_path, *TRAINED)
    predictions = forecast(read, tmp_path, replace(asked(2), allreduce=("fp16",))).predictions
    assert len(predictions) == 1 and prediction.expected(read, predictions) == []


def test_a_study_of_trainings_alone_says_what_it_lacks(tmp_path: Path) -> None:
    read = results.read(plant_trainings(tmp_path, TRAINED))
    with pytest.raises(CannotPredict, match="only trainings to a result"):
        forecast(read, tmp_path, asked(2))


def test_the_command_writes_it_beside_the_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(tmp_path, *TRAINED, *MEASURED)
    flags = ["--workers", "2,4,8", "--bandwidth", "25Gbit", "--latency", "5us", "--algorithm", "ring"]
    assert main(["predict", str(tmp_path), *flags]) == 0
    said = capsys.readouterr().out
    assert "Predicted seconds to the target (trained)" in said and "worker-hours for" in said
    frame = pd.read_csv(tmp_path / "tables" / "prediction-to-target.csv")
    assert frame.workers.tolist() == [2, 4, 8]
    assert frame.error.notna().tolist() == [True, True, False]


def test_one_workers_steps_are_shared_as_the_trainings_shared_theirs(tmp_path: Path) -> None:
    """A study that times one process and trains with DDP alone: what it predicts is DDP, held against its trainings."""
    plant_trainings(tmp_path, [*TRAINED, *MEASURED])
    alone = Planted("single", "resnet8", 64, 1, "none", 1000.0)
    read = results.read(plant(tmp_path, [alone], study="trained", seed=1))
    found = prediction.expected(read, forecast(read, tmp_path, asked(2, 4)).predictions)
    assert {one.prediction.target.row["framework"] for one in found} == {"torch_ddp"}
    assert [one.batch for one in found] == [128, 256]
    assert all(one.error is not None and one.error.value == pytest.approx(1, abs=0.15) for one in found)
