"""The norms that a training records are those of each rank's own gradient, and of their mean."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_cifar import tiny_cifar
from tiny_trainings import HERE, run

from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.train import noise
from scaling_study.train.noise import Noise, unknown
from scaling_study.train.recipe import Recipe
from scaling_study.trial import Trial

TRAIN, BATCH = 200, 16  # images, a tenth of them held out; of a step, by all workers
RECIPE = [
    *("--model", "resnet8_groupnorm", "--device", "cpu", "--cores-per-worker", "1", "--train-steps", "12"),
    *("--train-evaluate-every", "0.3636", "--train-optimizer", "nesterov", "--learning-rate", "0.05"),
]  # evaluated after every fourth step of eleven an epoch
READ = [5, 6, 7, 8, 9, 10, 11, 12]  # steps; by the fourth it is known how often it can be
FP64, HALVES = ["--precision", "fp64"], ["--accumulation", "2"]
CLIPPED = ["--train-clip-norm", "0.01"]
CASES: dict[str, tuple[str, int, list[str]]] = {  # framework, workers, flags
    "single": ("single", 1, [*FP64, *HALVES, *CLIPPED]),
    "torch_ddp": ("torch_ddp", 2, [*FP64, *CLIPPED]),
    "horovod": ("horovod", 2, [*FP64, *HALVES, *CLIPPED]),
    "mpi_allreduce": ("mpi_allreduce", 2, [*FP64, *HALVES, *CLIPPED]),
    "fairscale_oss": ("fairscale_oss", 2, [*FP64, *HALVES]),
    "fairscale_fsdp": ("fairscale_fsdp", 2, [*FP64, *HALVES]),
    "torch_fsdp2": ("torch_fsdp2", 2, [*FP64, *HALVES, *CLIPPED]),
    "torch_fsdp2, copies": ("torch_fsdp2", 2, [*FP64, "--shard-group", "1"]),
    "lightning_ddp": ("lightning_ddp", 2, [*FP64, *HALVES, *CLIPPED]),
    "compiled": ("single", 1, [*FP64, *HALVES, "--compile"]),
    **{f"deepspeed_zero, stage {n}": ("deepspeed_zero", 2, ["--zero-stage", str(n)]) for n in (0, 2, 3)},
}  # fmt: skip
USUAL = ("single", "torch_ddp", "horovod", "torch_fsdp2", "deepspeed_zero, stage 2")  # each reads gradients its own way


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Iterator[Path]:
    with tiny_cifar(tmp_path_factory.mktemp("data"), TRAIN) as folder:
        yield folder


def train(case: str, folder: Path, data: Path, how: str = "as it is") -> list[dict[str, Any]]:
    """`noise` of each rank's report; nothing of one that is killed."""
    framework, workers, flags = CASES[case]
    words = [*RECIPE, *flags, "--batch-per-worker", str(BATCH // workers), "--record", str(folder)]
    before = [str(HERE / "noise_by_hand.py"), str(folder), how]
    done = run(framework, workers, words, {"DATA_ROOT": str(data)}, before)
    assert (done.returncode != 0) == (how == "killed"), done.stdout[-2000:] + done.stderr[-3000:]
    return [] if how == "killed" else [vars(rank.training.noise) for rank in store.read_ranks(folder, workers)]


def by_hand(folder: Path) -> dict[int, list[float]]:
    return {int(step): pair for step, pair in json.loads((folder / "hand.json").read_text()).items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case if case in USUAL else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
def test_what_is_recorded_is_what_one_computes_by_hand(tmp_path: Path, data: Path, case: str) -> None:
    first, *others = train(case, tmp_path, data)
    assert {**first, "rows": []} == {"small_batch": 8, "big_batch": 16, "every": 1, "rows": [], "unknown": ""}
    assert all(other == first for other in others)
    assert [step for step, *_ in first["rows"]] == READ
    for step, *pair in first["rows"]:
        assert pair == pytest.approx(by_hand(tmp_path)[step], rel=1e-9 if "fp64" in CASES[case][2] else 1e-4)
        assert pair[0] != pytest.approx(pair[1], rel=0.01)  # so that one in the place of the other would be seen


@pytest.mark.slow
def test_a_gradient_that_is_read_when_it_is_averaged_already_is_found_by_the_test_above(
    tmp_path: Path, data: Path
) -> None:
    rows = train("torch_ddp", tmp_path, data, how="too late")[0]["rows"]
    assert len(rows) == len(READ)
    for step, small, big in rows:
        assert big == pytest.approx(by_hand(tmp_path)[step][1], rel=1e-9)
        assert small == pytest.approx(big, rel=1e-9)
        assert small != pytest.approx(by_hand(tmp_path)[step][0], rel=0.01)


@pytest.mark.slow
def test_rows_of_before_a_kill_are_still_there_after_it(tmp_path: Path, data: Path) -> None:
    train("single", tmp_path, data, how="killed")
    before = by_hand(tmp_path)
    rows = train("single", tmp_path, data)[0]["rows"]
    after = by_hand(tmp_path)
    assert min(after) == 9 and max(before) == 11  # gone on from the checkpoint after the eighth step
    assert [step for step, *_ in rows] == READ
    for step, *pair in rows:
        assert pair == pytest.approx({**before, **after}[step], rel=1e-9)


# --- one process, by itself ---


class Made:
    """A training of one weight whose gradient is the batch: the mean of two micro-batches."""

    def __init__(self, ranks: Ranks | None = None, scaled: bool = False, **keys: Any) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.0)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=scaled)
        workload = SimpleNamespace(model=torch.nn.ParameterList([self.weight]))
        training: Any = SimpleNamespace(step=self.step, workload=workload, optimizer=self.optimizer, scaler=self.scaler)
        trial = Trial(**{"framework": "single", "batch_per_worker": 8, "accumulation": 2, **keys})
        self.noise = Noise(training, trial, ranks or Ranks())

    def step(self, batch: Any) -> torch.Tensor:
        for part in batch:
            loss = (part * self.weight).sum() / len(batch)
            self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()

    def steps(self, *numbers: float) -> None:
        for number in numbers:
            self.noise.step([torch.tensor([number, 0.0]), torch.zeros(2)], int(number))


def recipe(steps: int) -> Recipe:
    return Recipe.of(Trial(train_steps=steps), 100, "accuracy")


@pytest.mark.parametrize("scaled", [False, True])
def test_of_one_worker_the_first_micro_batch_is_the_small_one(scaled: bool) -> None:
    made = Made(scaled=scaled)
    made.steps(1, 2, 3, 4)
    made.noise.settle([1.0] * 4, recipe(20))
    made.steps(5, 6)
    assert made.noise.record() == {
        "small_batch": 4, "big_batch": 8, "every": 1, "rows": [[5, 25.0, 6.25], [6, 36.0, 9.0]],
    }  # fmt: skip


@pytest.mark.parametrize("scaled", [False, True])
def test_what_is_not_finite_has_no_row_and_neither_has_a_step_that_fp16s_scaler_left_out(scaled: bool) -> None:
    made = Made(scaled=scaled)
    made.steps(1, 2, 3, 4)
    made.noise.settle([1.0] * 4, recipe(20))
    made.steps(5)
    made.noise.step([torch.full((2,), torch.inf)] * 2, 6)
    made.steps(7)
    assert [row[0] for row in made.noise.record()["rows"]] == [5, 7]
    assert made.scaler.get_scale() == (4.0 if scaled else 1.0)


@pytest.mark.parametrize(
    ("costs", "step_seconds", "steps", "every"),
    [
        ([0.0004, 0.0005, 0.3], 0.2, 400, 1),
        ([0.01, 0.01, 0.01], 0.1, 400, 20),  # 10 % of a step, in each twentieth: half a per cent
        ([0.0101, 0.0101, 0.0101], 0.1, 400, 21),
        ([0.0004, 0.0004, 0.0004], 0.2, 50_000, 100),  # no more than 500 rows
    ],
)
def test_readings_take_half_a_per_cent_of_the_time_and_a_record_has_500_at_most(costs, step_seconds, steps, every):
    made = Made()
    made.noise.costs = costs
    made.noise.settle([9.0, *[step_seconds] * 6], recipe(steps))
    assert made.noise.every == every


def test_rank_0_says_how_often() -> None:
    made = Made(Ranks(agree=lambda value: 7.0))
    made.noise.costs = [0.01] * 3
    made.noise.settle([0.1] * 6, recipe(400))
    assert made.noise.every == 7
    hooks = made.weight._post_accumulate_grad_hooks
    made.steps(*range(1, 15))
    assert [row[0] for row in made.noise.record()["rows"]] == [7, 14] and not hooks


@pytest.mark.parametrize(
    ("saved", "rows"),
    [
        ({"small_batch": 4, "big_batch": 8, "every": 3, "rows": [[3, 2.0, 1.0]]}, [[3, 2.0, 1.0]]),
        ({"small_batch": 2, "big_batch": 8, "every": 3, "rows": [[3, 2.0, 1.0]]}, []),  # of twice as many workers
        ({"unknown": noise.TOO_SHORT}, []),
        ({}, []),  # of a version that read none
    ],
)
def test_only_rows_of_the_same_batch_sizes_are_gone_on_with(saved, rows) -> None:
    made = Made()
    made.noise.go_on(saved)
    assert made.noise.rows == rows


def test_what_is_said_to_have_been_compared_is_above() -> None:
    assert {framework for framework, *_ in CASES.values()} == set(noise.COMPARED)


@pytest.mark.parametrize(
    ("workers", "keys", "reason"),
    [
        (1, {"framework": "single"}, noise.ONE_SIZE),
        (1, {"framework": "torch_ddp"}, noise.ONE_SIZE),
        (1, {"framework": "torch_ddp", "accumulation": 2}, ""),
        (2, {"framework": "torch_ddp"}, ""),
        (2, {"framework": "deepspeed_zero", "accumulation": 2}, noise.REDUCES_EACH),
        (1, {"framework": "deepspeed_zero", "accumulation": 2}, ""),
        (2, {"framework": "deepspeed_zero", "precision": "fp16"}, noise.OWN_SCALE),
        (2, {"framework": "torch_fsdp2", "precision": "bf16", "accumulation": 2}, noise.APART),
        (2, {"framework": "torch_fsdp2", "precision": "bf16"}, ""),
        (2, {"framework": "torch_pipeline"}, noise.STAGES),
        (2, {"framework": "lightning_fsdp"}, noise.UNTRIED),
        (2, {"framework": "torch_ddp", "allreduce": "powersgd2"}, noise.COMPRESSED),
        (2, {"framework": "diloco", "sync_every": 8}, noise.ALONE),
    ],
)
def test_why_it_is_unknown(workers: int, keys: dict[str, Any], reason: str) -> None:
    assert unknown(Trial(**keys), workers) == reason


def test_a_librarys_own_loop_is_not_read() -> None:
    assert unknown(Trial(framework="lightning_ddp", train_loop="native"), 2) == noise.NATIVE


def test_what_is_unknown_is_recorded_with_its_reason() -> None:
    alone, short = Made(accumulation=1), Made()
    for made in (alone, short):
        made.steps(1, 2, 3)
    assert alone.noise.record() == {"unknown": noise.ONE_SIZE} and short.noise.record() == {"unknown": noise.TOO_SHORT}
