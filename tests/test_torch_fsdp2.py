"""torch FSDP2 for real, two processes on the CPU: what it moves, what it keeps, and that it trains what one would."""

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

PARAMETERS = 78_042  # of resnet8; no tensor needs padding for two workers
VECTORS = 682  # of them normalisation and biases
LAST_BLOCK, ROOT = 57_728, 1_114
BASE = Trial(
    framework="torch_fsdp2", launcher="torchrun", model="resnet8", batch_per_worker=8, data="synthetic", device="cpu",
    workers=2, cores_per_worker=1, window=Window(1, 2, 0.0, None, 2),
)  # fmt: skip


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


def with_keys(**keys: object) -> Trial:
    return replace(BASE, **keys)  # type: ignore[arg-type]


def test_stage_3_gathers_twice_and_16_bit_gradients_save_a_sixth(tmp_path: Path) -> None:
    reports = run(with_keys(zero_stage=3, allreduce="fp16"), tmp_path)
    for report in reports:
        assert report.communication_bytes == {"all_gather": 2 * PARAMETERS * 4, "reduce_scatter": PARAMETERS * 2}
        assert sum(report.communication_bytes.values()) * 6 == 3 * PARAMETERS * 4 * 5
        assert report.allreduce_bytes == PARAMETERS * 2
        assert report.backend["units"] == 4  # three blocks, and what is left
        assert report.memory["parameters"] == report.memory["gradients"] == report.memory["optimizer"] == PARAMETERS * 2
        assert report.memory["gathered"] == (LAST_BLOCK + ROOT) * 4  # one block beside the outermost unit
    assert reports[0].loss_last != reports[1].loss_last  # each its own share of the data


def test_stage_2_keeps_what_it_gathered_until_backward(tmp_path: Path) -> None:
    for report in run(with_keys(zero_stage=2), tmp_path):
        assert report.communication_bytes == {"all_gather": PARAMETERS * 4, "reduce_scatter": PARAMETERS * 4}
        assert report.memory["parameters"] == PARAMETERS * 2
        assert report.memory["gathered"] == PARAMETERS * 4


def test_16_bit_compute_gathers_matrices_in_16_bits(tmp_path: Path) -> None:
    for report in run(with_keys(precision="bf16", accumulation=2), tmp_path):
        once = (PARAMETERS - VECTORS) * 2 + VECTORS * 4
        assert report.communication_bytes == {"all_gather": 2 * 2 * once, "reduce_scatter": PARAMETERS * 4}


def test_one_worker_moves_nothing(tmp_path: Path) -> None:
    (report,) = run(with_keys(workers=1, allreduce="none"), tmp_path)
    assert report.communication_bytes == {}


@pytest.mark.parametrize("keys", [{"zero_stage": 2}, {"zero_stage": 3, "accumulation": 2}], ids=str)
def test_ten_steps_in_fp64_are_those_of_one_process(tmp_path: Path, keys: dict[str, object]) -> None:
    gate, *_ = gates.of(with_keys(**keys))
    assert gate.precision == "fp64"
    assert verdict(gate, tmp_path) == "passed"


@pytest.mark.parametrize("keys", [{"allreduce": "fp16"}, {"allreduce": "bf16", "precision": "bf16"}], ids=str)
def test_16_bits_cost_no_more_than_their_rounding(tmp_path: Path, keys: dict[str, object]) -> None:
    _, gate = gates.of(with_keys(**keys))
    assert verdict(gate, tmp_path) == "passed"
