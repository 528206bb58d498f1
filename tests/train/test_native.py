"""Lightning's Trainer and DeepSpeed's engine train what our loop trains, and leave the same record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tiny_cifar import TEST, tiny_cifar
from tiny_trainings import Trainings, run

from scaling_study.records.schema import RankReport
from scaling_study.settings import CHECKOUT

pytestmark = pytest.mark.slow
RECIPE = [
    *("--model", "resnet8_groupnorm", "--device", "cpu", "--cores-per-worker", "1", "--batch-per-worker", "16"),
    *("--train-steps", "26", "--train-evaluate-every", "0.3636", "--train-optimizer", "nesterov"),
    *("--learning-rate", "0.05", "--train-weight-decay", "5e-4", "--train-label-smoothing", "0.1"),
    *("--train-augmentation", "crop_flip", "--train-schedule", "cosine", "--train-warmup-steps", "3"),
]  # evaluated after every fourth step of eleven an epoch, and after the last
CLIPPED = ["--train-clip-norm", "0.5"]
LIGHTNING = ["--precision", "fp64", *CLIPPED, "--accumulation", "2"]
ZERO = ["--zero-stage", "2"]
NATIVE = ["--train-loop", "native"]
TENSORBOARD = ["--train-log", "tensorboard"]
EARLY = ["--train-patience", "1", "--learning-rate", "8"]  # it gets worse soon


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[RankReport]]]:
    """trained("lightning_ddp", "--flag"): the reports of its two ranks."""
    with tiny_cifar(tmp_path_factory.mktemp("data")) as data:
        trainings = Trainings(tmp_path_factory.mktemp, RECIPE, DATA_ROOT=str(data))

        def train(framework: str, *flags: str, kill: str = "") -> list[RankReport]:
            on_cpu = [str(CHECKOUT / "tests/fsdp_on_cpu.py")] if framework == "lightning_fsdp" else []
            reports = trainings(framework, 2, *flags, kill=kill, before=on_cpu)
            table = trainings.record(framework, 2, *flags, kill=kill, before=on_cpu) / "training.csv"
            assert len(table.read_text().splitlines()) == 1 + len(reports[0].training.rows)
            return reports

        yield train


def column(report: RankReport, key: str) -> list[Any]:
    return [row[key] for row in report.training.rows]


@pytest.mark.parametrize(("framework", "flags"), [("lightning_ddp", LIGHTNING), ("deepspeed_zero", ZERO)])
def test_it_trains_what_our_loop_trains(trained, framework: str, flags: list[str]) -> None:
    """Lightning in fp64 under a clipped norm, with accumulation; DeepSpeed in fp32, by its own scheduler."""
    (ours, _), (native, other) = trained(framework, *flags), trained(framework, *flags, *NATIVE)
    assert (ours.training.loop, native.training.loop) == ("ours", "native")
    for key in ("steps", "samples", "epoch", "accuracy"):
        assert column(native, key) == column(ours, key)
    for key in ("train_loss", "loss", "learning_rate"):
        assert column(native, key) == pytest.approx(column(ours, key), rel=1e-9), key
        assert column(native, key) == column(other, key)
    assert native.training.orders == ours.training.orders and len(native.training.orders) == 2
    tested, test = native.training.evaluated, ours.training.evaluated
    assert tested["samples"] == TEST and tested["accuracy"] == test["accuracy"]
    assert tested["loss"] == pytest.approx(test["loss"], rel=1e-9)
    assert native.loss_first == pytest.approx(ours.loss_first, rel=1e-9)


@pytest.mark.long
def test_deepspeed_clips_by_the_norm_of_all_gradients(trained) -> None:
    """As DDP with torch's clipping: equal to a rounding of fp32 over the first four steps, which then grows to 2e-4."""
    (ours, _), (native, _) = trained("torch_ddp", *CLIPPED), trained("deepspeed_zero", *ZERO, *CLIPPED, *NATIVE)
    clipped, unclipped = column(ours, "train_loss"), column(trained("deepspeed_zero", *ZERO)[0], "train_loss")
    assert column(native, "train_loss")[0] == pytest.approx(clipped[0], rel=1e-6)
    assert column(native, "train_loss") == pytest.approx(clipped, rel=2e-3)
    assert unclipped[0] != pytest.approx(clipped[0], rel=1e-4)


@pytest.mark.long
def test_deepspeeds_schedule_goes_on_where_its_checkpoint_was(trained) -> None:
    whole, _ = trained("deepspeed_zero", *ZERO, *NATIVE)
    resumed, _ = trained("deepspeed_zero", *ZERO, *NATIVE, kill="steps:10")
    assert resumed.training.resumed == 1
    assert column(resumed, "train_loss") == pytest.approx(column(whole, "train_loss"), rel=1e-12)


@pytest.mark.long
def test_lightning_goes_on_where_it_was_killed(trained) -> None:
    """With what its EarlyStopping has waited for, its best model, and the rates of a schedule."""
    flags = ["--precision", "fp64", *EARLY, "--train-patience", "3", *NATIVE]
    (whole, _), (resumed, other) = trained("lightning_ddp", *flags), trained("lightning_ddp", *flags, kill="steps:10")
    assert (resumed.training.resumed, whole.training.resumed) == (1, 0)
    for key in ("steps", "train_loss", "loss", "learning_rate"):
        assert column(resumed, key) == pytest.approx(column(whole, key), rel=1e-12), key
    assert resumed.training.orders == whole.training.orders
    tested, test = resumed.training.evaluated, whole.training.evaluated
    assert resumed.training.ended_by == whole.training.ended_by == "patience"
    assert tested["step"] == test["step"] and tested == other.training.evaluated
    assert tested["loss"] == pytest.approx(test["loss"], rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("framework", ["lightning_ddp", "deepspeed_zero"])
def test_it_ends_at_the_target_and_says_which_seconds_were_training(trained, framework: str) -> None:
    report, _ = trained(framework, *NATIVE, "--train-target", "loss=2.28")
    training = report.training
    assert training.ended_by == "target" and training.reached == training.rows[-1]
    assert training.reached["loss"] <= 2.28 < training.rows[-2]["loss"]
    assert training.steps == training.rows[-1]["steps"] < 26
    steps = [*report.warmup_seconds, *report.step_seconds]
    assert len(steps) == training.steps and min(steps) > 0
    assert sum(steps) == pytest.approx(training.seconds["train"]) == pytest.approx(column(report, "seconds")[-1])
    assert training.seconds["evaluate"] > 0 and training.seconds["test"] > 0
    assert all(row["all_seconds"] > row["seconds"] for row in training.rows)


@pytest.mark.long
def test_lightning_stops_early_tests_its_best_model_and_writes_its_own_logs(trained) -> None:
    """Its EarlyStopping and ModelCheckpoint do what our loop does."""
    (ours, _), (native, other) = (
        trained("lightning_ddp", "--precision", "fp64", *EARLY, *more) for more in ([], [*NATIVE, *TENSORBOARD])
    )
    assert ours.training.ended_by == native.training.ended_by == "patience"
    tested, test = native.training.evaluated, ours.training.evaluated
    assert tested["step"] == test["step"] == ours.training.best_step < ours.training.steps
    assert tested["loss"] == pytest.approx(test["loss"], rel=1e-6) and tested == other.training.evaluated


def test_lightnings_sharded_models_train_in_its_own_loop_too(trained) -> None:
    """FSDP in fp32, its checkpoint of the best model gathered and given back; DDP's is in fp64."""
    (ddp, _), (native, other) = (
        trained("lightning_ddp", "--precision", "fp64", *EARLY), trained("lightning_fsdp", *EARLY, *NATIVE)
    )  # fmt: skip
    # at a rate that diverges, which is what stops early, rounding of fp32 grows: to 4e-4 on one CPU, 1e-5 on another
    assert column(native, "train_loss")[0] == pytest.approx(column(ddp, "train_loss")[0], rel=2e-3)
    assert native.training.ended_by == "patience" and native.backend["units"] == 4
    tested, test = native.training.evaluated, ddp.training.evaluated
    assert tested == other.training.evaluated and tested["step"] == test["step"]
    assert tested["loss"] == pytest.approx(test["loss"], rel=1e-2)
    assert native.memory["parameters"] * 2 == pytest.approx(ddp.memory["parameters"] / 2, rel=0.05)


@pytest.mark.long
def test_lightning_stops_when_its_time_is_over(trained) -> None:
    report, _ = trained("lightning_ddp", *NATIVE, "--train-max-seconds", "0.01")
    assert report.training.ended_by == "seconds" and 1 <= report.training.steps <= 4
    assert len(report.training.rows) == 1


def test_a_framework_without_a_loop_of_its_own_refuses() -> None:
    done = run("torch_ddp", 2, [*RECIPE, *NATIVE], {})
    assert done.returncode != 0
    assert "torch_ddp has no training loop of its own; lightning_ddp, lightning_fsdp and deepspeed" in done.stderr


@pytest.mark.long
def test_lightning_writes_its_last_row_also_where_the_time_is_over_and_nothing_is_validated(trained) -> None:
    over = ["--train-steps", "100000", "--train-max-seconds", "0.5", "--train-evaluate-every", "9000"]
    first, _ = trained("lightning_ddp", *over, "--train-validation", "0", *NATIVE)
    assert first.training.ended_by == "seconds" and first.training.rows[-1]["steps"] == first.training.steps
