"""Every framework trains the same, and goes on from a checkpoint as if it had never been killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tiny_cifar import TEST, tiny_cifar
from tiny_trainings import Trainings

from scaling_study.frameworks import FRAMEWORKS

pytestmark = pytest.mark.slow
TRAIN, BATCH = 200, 16  # images, a tenth of them held out; of a step, by all workers
STEPS = 20
RECIPE = [
    *("--model", "resnet8_groupnorm", "--device", "cpu", "--cores-per-worker", "1", "--train-steps", str(STEPS)),
    *("--train-evaluate-every", "0.3636", "--train-optimizer", "nesterov", "--learning-rate", "0.05"),
    *("--train-weight-decay", "5e-4", "--train-label-smoothing", "0.1", "--train-augmentation", "crop_flip"),
    *("--train-schedule", "cosine", "--train-warmup-steps", "3"),
]  # evaluated after every fourth step of eleven an epoch
CLIPPED = ["--train-clip-norm", "0.5"]
FP64 = ["--precision", "fp64"]
CASES = {  # framework -> its flags
    "torch_ddp": [*FP64, *CLIPPED],
    "torch_fsdp2": [*FP64, *CLIPPED],
    "lightning_ddp": [*FP64, *CLIPPED],
    "fairscale_oss": FP64,
    "fairscale_fsdp": FP64,
    "deepspeed_zero": ["--zero-stage", "2"],
    "torch_pipeline": [*FP64, *CLIPPED],
    "naive_model_parallel": [*FP64, *CLIPPED],
    "fairscale_pipe": [*FP64, *CLIPPED],
}


BY_MPI = {"horovod": [*FP64, *CLIPPED], "mpi_allreduce": [*FP64, *CLIPPED]}
LIKE_SINGLE = ("naive_model_parallel", "fairscale_pipe")  # one process, whose state is kept as `single` keeps its own
KILLED = [pytest.param(name, marks=[pytest.mark.long] * (name in LIKE_SINGLE)) for name in ("single", *CASES)]
Trained = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """trained("torch_ddp", 2, [flags]): what came of it on rank 0. `kill`: after so many steps, and then gone on."""
    with tiny_cifar(tmp_path_factory.mktemp("data"), TRAIN) as data:
        trainings = Trainings(tmp_path_factory.mktemp, RECIPE, DATA_ROOT=str(data))

        def train(framework: str, workers: int, flags: list[str], kill: int = 0, steps: int = STEPS) -> dict[str, Any]:
            replicas = workers // 2 if FRAMEWORKS[framework].cuts_model else workers  # pipelines have two stages
            words = (framework, workers, "--batch-per-worker", str(BATCH // replicas), *flags)
            how = f"steps:{kill}" if kill else ""
            first, *others = trainings(*words, kill=how)
            assert json.loads((trainings.record(*words, kill=how) / "progress.json").read_text())["steps"] == steps
            for rank in others:  # figures of all ranks, which each of them has
                assert (
                    losses(vars(rank.training)) == losses(vars(first.training)) and rank.loss_first == first.loss_first
                )
                assert rank.training.evaluated == first.training.evaluated
            if framework in ("horovod", "torch_fsdp2") and not kill:  # which hold what they send in buffers
                assert first.memory["buckets"] > 0
            rounds = [(each.peers, each.failure) for rank in (first, *others) for each in rank.rounds]
            return {**vars(first.training), "rounds": rounds}

        yield train


def losses(training: dict[str, Any], key: str = "train_loss") -> list[float]:
    return [row[key] for row in training["rows"]]


@pytest.mark.parametrize("framework", [*CASES, *BY_MPI])
def test_two_workers_follow_one_process(trained, framework: str) -> None:
    """In fp64, with augmentation, schedule, label smoothing and, where it can be, clipping. DeepSpeed has no fp64: in
    fp32 one rounding grows to 1e-3 in these steps, so it is held against DDP, which adds up in the same order."""
    flags = {**CASES, **BY_MPI}[framework]
    alone = trained("torch_ddp", 2, []) if framework == "deepspeed_zero" else trained("single", 1, flags)
    both = trained(framework, 2, flags)
    assert len(losses(both)) == 5
    for key in ("train_loss", "loss"):
        assert losses(both, key) == pytest.approx(losses(alone, key), rel=1e-9)
    assert both["evaluated"]["samples"] == alone["evaluated"]["samples"] == TEST
    assert losses(both, "accuracy") == losses(alone, "accuracy")


@pytest.mark.parametrize("framework", KILLED)
def test_a_training_that_was_killed_goes_on_as_if_it_had_not_been(trained, framework: str) -> None:
    flags, workers = ([*FP64, *CLIPPED], 1) if framework == "single" else (CASES[framework], 2)
    whole, resumed = trained(framework, workers, flags), trained(framework, workers, flags, kill=10)
    assert resumed["resumed"] == 1
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-12)
    assert resumed["orders"] == whole["orders"]
    assert resumed["evaluated"]["loss"] == pytest.approx(whole["evaluated"]["loss"], rel=1e-12)


@pytest.mark.parametrize("kill", [pytest.param(0, marks=pytest.mark.long), 3])
def test_peers_train_and_go_on_from_a_checkpoint(trained: Trained, kill: int) -> None:
    """Rounds of two peers have at least their target, and not always as many samples: no two trainings are the same."""
    flags = ["--target-batch-size", "32", "--matchmaking-seconds", "1.5", "--train-evaluate-every", "0.4"]
    peers = trained("hivemind", 2, [*FP64, *flags, "--train-steps", "4"], kill, steps=4)
    assert (peers["resumed"], peers["ended_by"]) == (bool(kill), "steps")
    assert [row["steps"] for row in peers["rows"]] == [2, 4]
    for row in peers["rows"]:
        assert row["samples"] >= 32 * row["steps"] and row["samples"] % (BATCH // 2) == 0
        assert row["epoch"] == pytest.approx(row["samples"] / 32 / 5), "five rounds have the target an epoch"
    assert peers["evaluated"]["samples"] == TEST and not peers["orders"]
    assert peers["rounds"] == [(2, "")] * 2 * (2 if kill else 4)


def test_replicas_of_a_pipeline_share_the_samples_of_one_process(trained) -> None:
    four = trained("torch_pipeline", 4, [*FP64, *CLIPPED, "--stages", "2", "--schedule", "zbv_zero_bubble"])
    alone = trained("single", 1, [*FP64, *CLIPPED])
    for key in ("train_loss", "loss"):
        assert losses(four, key) == pytest.approx(losses(alone, key), rel=1e-9)
    assert four["layout"] == alone["layout"]


def test_no_two_epochs_read_their_samples_in_one_order(trained) -> None:
    orders = trained("single", 1, [*FP64, *CLIPPED])["orders"]
    assert len(orders) == len(set(orders)) == 1


@pytest.mark.long
def test_peers_train_until_they_reach_a_target(trained: Trained) -> None:
    flags = ["--target-batch-size", "32", "--matchmaking-seconds", "1.5", "--train-evaluate-every", "0.4"]
    peers = trained("hivemind", 2, [*flags, "--train-target", "loss=9"], steps=2)
    assert (peers["ended_by"], peers["reached"]) == ("target", peers["rows"][0])
    assert peers["reached"]["steps"] == 2 and peers["reached"]["seconds"] > 0


def test_batchnorm_of_micro_batches_is_evaluated_as_in_one_process_that_accumulates(trained) -> None:
    flags = [*FP64, "--model", "resnet8"]  # comes after the recipe's own
    both = trained("torch_pipeline", 2, [*flags, "--micro-batches", "4"])
    alone = trained("single", 1, [*flags, "--accumulation", "4"])
    for key in ("train_loss", "loss"):
        assert losses(both, key) == pytest.approx(losses(alone, key), rel=1e-9)
    assert both["orders"] == alone["orders"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("framework", "keys"),
    [
        ("torch_ddp", ["--allreduce", "powersgd2"]),
        ("diloco", ["--sync-every", "3"]),  # neither divides the steps to the checkpoint, nor all of them
        ("diloco", ["--sync-every", "3", "--outer", "average"]),
    ],
)
def test_what_each_worker_keeps_for_itself_outlives_a_kill(trained: Trained, framework: str, keys: list[str]) -> None:
    flags = [*FP64, *CLIPPED, *keys]
    whole, resumed = trained(framework, 2, flags), trained(framework, 2, flags, kill=10)
    assert resumed["resumed"] == 1 and resumed["orders"] == whole["orders"]
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-12)
    assert losses(resumed, "loss") == pytest.approx(losses(whole, "loss"), rel=1e-12)
    assert losses(whole) != pytest.approx(losses(trained("torch_ddp", 2, [*FP64, *CLIPPED])), rel=1e-6)
