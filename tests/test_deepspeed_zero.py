"""DeepSpeed ZeRO for real, two processes on the CPU: what each stage moves and keeps, and that it trains the same."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from scaling_study import gates, launchers, records
from scaling_study.records import RankReport
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial, Window

pytestmark = pytest.mark.slow

PARAMETERS = 78_042  # of resnet8; no tensor of it needs padding for two workers
FLAT = 78_044  # as one, padded to a multiple of four
NORM = 4  # of the gradients
BASE = Trial(
    framework="deepspeed_zero", launcher="torchrun", model="resnet8", batch_per_worker=8, data="synthetic",
    device="cpu", workers=2, cores_per_worker=1, window=Window(1, 2, 0.0, None, 2),
)  # fmt: skip


def with_keys(**keys: object) -> Trial:
    return replace(BASE, **keys)  # type: ignore[arg-type]


def run(trial: Trial, folder: Path) -> list[RankReport]:
    """The trial's reports, after it has exited with 0."""
    records.write_json(folder / "trial.json", {**trial.to_dict(), "window": asdict(trial.window)})
    command = launchers.command(trial, record=folder)
    done = subprocess.run(command.argv, env={**os.environ, **command.env}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return records.read_ranks(folder, trial.workers)


def verdict(trial: Trial, folder: Path) -> str:
    """What the parity gate says of the trial."""
    run(trial, folder)
    check = [sys.executable, "-m", "scaling_study.parity.check", str(folder)]
    subprocess.run(check, cwd=CHECKOUT, capture_output=True, check=True, timeout=120)
    return str(records.load(folder / "parity.json")["verdict"])


ALLREDUCE = {"allreduce": PARAMETERS * 4 + NORM}
STAGES = {  # bytes that each hands over in a step, and that a worker holds of weights, gradients and optimiser
    0: ({"allreduce": PARAMETERS * 4}, (PARAMETERS * 4, PARAMETERS * 4, PARAMETERS * 4)),
    1: ({**ALLREDUCE, "all_gather": FLAT * 4}, (FLAT * 4, FLAT * 4, FLAT * 4)),  # momentum and master copy: half each
    2: ({**ALLREDUCE, "all_gather": FLAT * 4}, (FLAT * 4, FLAT * 2, FLAT * 4)),
    3: (
        {"reduce_scatter": PARAMETERS * 4, "all_gather": 2 * PARAMETERS * 4, "allreduce": 2 * NORM, "broadcast": 8},
        (PARAMETERS * 2, PARAMETERS * 2, PARAMETERS * 2),
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_moves_and_keeps_what_it_says(tmp_path: Path, stage: int) -> None:
    moved, kept = STAGES[stage]
    reports = run(with_keys(zero_stage=stage), tmp_path)
    for report in reports:
        assert report.communication_bytes == moved
        assert tuple(report.memory[kind] for kind in ("parameters", "gradients", "optimizer")) == kept
        assert report.backend["zero_stage"] == stage
    assert reports[0].loss_last != reports[1].loss_last  # each its own share of the data
    assert report.memory.get("gathered", 0) == (36_864 * 4 if stage == 3 else 0)  # the largest layer


def test_stage_3_gathers_in_every_micro_batch_and_16_bit_gradients_are_half(tmp_path: Path) -> None:
    for report in run(with_keys(zero_stage=3, allreduce="bf16", accumulation=2), tmp_path):
        assert report.communication_bytes["all_gather"] == 2 * 2 * PARAMETERS * 4
        assert report.communication_bytes["reduce_scatter"] == 2 * PARAMETERS * 2


def test_16_bit_compute_leaves_the_wire_to_the_allreduce_axis(tmp_path: Path) -> None:
    for report in run(with_keys(precision="bf16", allreduce="fp16"), tmp_path):  # stage 2 if nothing is said
        assert report.communication_bytes == {"allreduce": PARAMETERS * 2 + NORM, "all_gather": FLAT * 4}


def test_the_bare_command_works_from_elsewhere(tmp_path: Path) -> None:
    argv = [str(Path(sys.executable).parent / "deepspeed"), "--num_gpus", "2", str(CHECKOUT / "fsdp/deepspeed_zero.py")]
    flags = ["--model", "resnet8", "--batch-per-worker", "8", "--data", "synthetic", "--steps", "2", "--device", "cpu"]
    done = subprocess.run([*argv, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Total images/sec on 2 worker(s)" in done.stdout


def test_fp64_is_refused_and_not_rounded() -> None:
    script = [sys.executable, str(CHECKOUT / "fsdp/deepspeed_zero.py"), "--precision", "fp64"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 2 and "invalid choice: 'fp64'" in done.stderr


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_is_that_of_one_process(tmp_path: Path, stage: int) -> None:
    (gate,) = gates.of(with_keys(zero_stage=stage))
    assert (gate.precision, gate.model) == ("fp32", "resnet8_groupnorm")
    assert verdict(gate, tmp_path) == "passed"


@pytest.mark.parametrize(
    "keys",
    [{"zero_stage": 3, "allreduce": "fp16"}, {"allreduce": "bf16"}, {"precision": "bf16", "zero_stage": 3}],
    ids=str,
)
def test_16_bits_cost_no_more_than_their_rounding(tmp_path: Path, keys: dict[str, object]) -> None:
    _, gate = gates.of(with_keys(**keys))
    assert verdict(gate, tmp_path) == "passed"
