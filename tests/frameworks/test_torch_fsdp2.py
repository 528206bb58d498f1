"""torch FSDP2 for real, two processes on the CPU: what it moves, what it keeps, and that it trains what one would."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import forked
import pytest

from scaling_study.launch import launchers
from scaling_study.records import store
from scaling_study.records.store import RankReport
from scaling_study.study import gates
from scaling_study.trial import Trial, Window

pytestmark = pytest.mark.slow

PARAMETERS = 78_042  # of resnet8; no tensor needs padding for two workers
VECTORS = 682  # of them normalisation and biases
LAST_BLOCK, ROOT = 57_728, 1_114
BASE = Trial(
    framework="torch_fsdp2", launcher="torchrun", model="resnet8", batch_per_worker=8, data="synthetic", device="cpu",
    workers=2, cores_per_worker=1, tuned_for="memory", window=Window(1, 2, 0.0, None, 2),
)  # fmt: skip


def run(trial: Trial, folder: Path) -> list[RankReport]:
    """The trial's reports, after it has exited with 0."""
    store.write_json(folder / "trial.json", {**trial.to_dict(), "window": asdict(trial.window)})
    command = launchers.command(trial, record=folder)
    done = forked.run(command.argv, env=command.env)
    assert done.returncode == 0, done.stdout + done.stderr
    return store.read_ranks(folder, trial.workers)


def judged(trial: Trial, folder: Path) -> tuple[list[RankReport], str]:
    """The reports of a parity trial, and what the gate says of it."""
    reports = run(trial, folder)
    assert forked.run([sys.executable, "-m", "scaling_study.parity.check", folder]).returncode == 0
    return reports, str(store.load(folder / "parity.json")["verdict"])


def with_keys(**keys: object) -> Trial:
    return replace(BASE, **keys)  # type: ignore[arg-type]


def test_stage_3_gathers_twice_and_16_bit_gradients_save_a_sixth(tmp_path: Path) -> None:
    reports = run(with_keys(allreduce="fp16"), tmp_path)  # stage 3 if nothing is said
    for report in reports:
        assert report.communication_bytes == {"all_gather": 2 * PARAMETERS * 4, "reduce_scatter": PARAMETERS * 2}
        assert sum(report.communication_bytes.values()) * 6 == 3 * PARAMETERS * 4 * 5
        assert report.allreduce_bytes == PARAMETERS * 2
        assert report.backend["units"] == 4  # three blocks, and what is left
        assert report.memory["parameters"] == report.memory["gradients"] == PARAMETERS * 2
        assert report.memory["optimizer"] == PARAMETERS * 2  # momentum
        assert report.memory["gathered"] == (LAST_BLOCK + ROOT) * 4  # one block beside the outermost unit
        assert report.memory["buckets"] == LAST_BLOCK * 2  # one unit's gradients at a time, here in 16 bits
    assert reports[0].loss_last != reports[1].loss_last  # each its own share of the data


@pytest.mark.parametrize(("stage", "gathers", "at_once"), [(2, 1, PARAMETERS), (3, 2, LAST_BLOCK + ROOT)])
def test_ten_steps_in_fp64_are_those_of_one_process(tmp_path: Path, stage: int, gathers: int, at_once: int) -> None:
    gate, _ = gates.gates_of(with_keys(zero_stage=stage))
    reports, verdict = judged(gate, tmp_path)
    assert (gate.precision, verdict) == ("fp64", "passed")
    for report in reports:
        assert report.communication_bytes == {"all_gather": gathers * PARAMETERS * 8, "reduce_scatter": PARAMETERS * 8}
        assert report.memory["parameters"] == PARAMETERS * 4
        assert report.memory["gathered"] == at_once * 8


def test_tuned_for_speed_the_outermost_unit_is_gathered_once(tmp_path: Path) -> None:
    gate, _ = gates.gates_of(with_keys(tuned_for="speed"))
    reports, verdict = judged(gate, tmp_path)
    assert verdict == "passed"
    for report in reports:
        assert report.communication_bytes["all_gather"] == (2 * PARAMETERS - ROOT) * 8


def test_16_bit_gradients_cost_no_more_than_their_rounding(tmp_path: Path) -> None:
    _, gate = gates.gates_of(with_keys(allreduce="fp16"))
    assert judged(gate, tmp_path)[1] == "passed"


def test_16_bit_compute_gathers_matrices_in_16_bits_in_every_micro_batch(tmp_path: Path) -> None:
    _, gate = gates.gates_of(with_keys(precision="bf16", allreduce="bf16", accumulation=2))
    reports, verdict = judged(gate, tmp_path)
    once = (PARAMETERS - VECTORS) * 2 + VECTORS * 4
    assert reports[0].communication_bytes == {"all_gather": 2 * 2 * once, "reduce_scatter": PARAMETERS * 2}
    assert verdict == "passed"


def test_one_worker_moves_nothing(tmp_path: Path) -> None:
    (report,) = run(with_keys(workers=1, allreduce="none"), tmp_path)
    assert report.communication_bytes == {}
