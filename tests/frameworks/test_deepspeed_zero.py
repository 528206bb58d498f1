"""DeepSpeed ZeRO for real, two processes on the CPU: what each stage moves and keeps, and that it trains the same."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import forked
import pytest

from scaling_study.launch import launchers
from scaling_study.records import store
from scaling_study.records.store import RankReport
from scaling_study.settings import CHECKOUT
from scaling_study.study import gates
from scaling_study.trial import Trial, Window

pytestmark = pytest.mark.slow

PARAMETERS = 78_042  # of resnet8; no tensor of it needs padding for two workers
FLAT = 78_044  # as one, padded to a multiple of four
NORM = 4  # of the gradients
LARGEST_LAYER = 36_864
BASE = Trial(
    framework="deepspeed_zero", launcher="torchrun", model="resnet8", batch_per_worker=8, data="synthetic",
    device="cpu", workers=2, cores_per_worker=1, tuned_for="memory", window=Window(1, 2, 0.0, None, 2),
)  # fmt: skip


def with_keys(**keys: object) -> Trial:
    return replace(BASE, **keys)  # type: ignore[arg-type]


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


def moved(report: RankReport) -> dict[str, int]:
    """Bytes by kind; broadcasts apart, by which stage 3 compares the order of layers in its first steps."""
    return {kind: size for kind, size in report.communication_bytes.items() if kind != "broadcast"}


ZERO_2 = {"allreduce": PARAMETERS * 4 + NORM, "all_gather": FLAT * 4}
STAGES = {  # bytes handed over in a step; bytes kept of weights, gradients and (with no momentum) for the optimiser
    0: ({"allreduce": PARAMETERS * 4}, (PARAMETERS * 4, PARAMETERS * 4, 0)),
    1: (ZERO_2, (FLAT * 4, FLAT * 4, FLAT * 2)),  # half of a second copy of the weights
    2: (ZERO_2, (FLAT * 4, FLAT * 2, FLAT * 2)),
    3: (
        {"reduce_scatter": PARAMETERS * 4, "all_gather": 2 * PARAMETERS * 4, "allreduce": 2 * NORM},  # in fp64
        (PARAMETERS * 2, PARAMETERS * 2, 0),
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_moves_and_keeps_what_it_says_and_trains_as_one_process(tmp_path: Path, stage: int) -> None:
    (gate,) = gates.gates_of(with_keys(zero_stage=stage))
    assert (gate.precision, gate.model) == ("fp32", "resnet8_groupnorm")
    reports, verdict = judged(gate, tmp_path)
    assert verdict == "passed"
    for report in reports:
        assert moved(report) == STAGES[stage][0]
        kept = tuple(report.memory[kind] for kind in ("parameters", "gradients", "optimizer"))
        assert kept == STAGES[stage][1]
        assert report.memory.get("gathered", 0) == (LARGEST_LAYER * 4 if stage == 3 else 0)
        assert report.memory["buckets"] == PARAMETERS * 4, "as DDP's"
        assert report.backend["zero_stage"] == stage


@pytest.mark.parametrize(
    ("stage", "moves", "whole", "buckets"),
    [
        (2, ZERO_2, 1, 2),
        (3, {"reduce_scatter": PARAMETERS * 4, "all_gather": PARAMETERS * 4, "allreduce": 2 * NORM}, 1.5, 1),
    ],
)
def test_tuned_for_speed_weights_stay_whole_and_a_second_bucket_fills_meanwhile(
    tmp_path: Path, stage: int, moves: dict[str, int], whole: float, buckets: int
) -> None:
    """Every tensor of so small a model is below the threshold: stage 3 keeps it whole beside this worker's part."""
    trial = with_keys(zero_stage=stage, tuned_for="speed", model="resnet8_groupnorm")
    (gate,) = gates.gates_of(trial)
    assert judged(gate, tmp_path / "gate")[1] == "passed"
    for report in run(trial, tmp_path / "timed"):
        assert moved(report) == moves
        assert report.memory["buckets"] == buckets * PARAMETERS * 4
        assert report.memory["parameters"] == pytest.approx(whole * PARAMETERS * 4, rel=1e-4)


def test_stage_3_gathers_in_every_micro_batch_and_16_bit_gradients_are_half(tmp_path: Path) -> None:
    _, gate = gates.gates_of(with_keys(zero_stage=3, allreduce="fp16", accumulation=2))
    reports, verdict = judged(gate, tmp_path)
    assert verdict == "passed"
    expected = {"reduce_scatter": 2 * PARAMETERS * 2, "all_gather": 2 * 2 * PARAMETERS * 4, "allreduce": 2 * NORM}
    assert moved(reports[0]) == expected


def test_16_bit_compute_leaves_the_wire_to_the_allreduce_axis(tmp_path: Path) -> None:
    _, gate = gates.gates_of(with_keys(precision="bf16", allreduce="fp16"))
    reports, verdict = judged(gate, tmp_path)
    assert verdict == "passed"
    assert moved(reports[0]) == {"allreduce": PARAMETERS * 2 + NORM, "all_gather": FLAT * 4}


def test_the_bare_command_works_from_elsewhere_and_means_stage_2(tmp_path: Path) -> None:
    argv = [str(Path(sys.executable).parent / "deepspeed"), "--num_gpus", "2", str(CHECKOUT / "fsdp/deepspeed_zero.py")]
    flags = ["--model", "resnet8", "--batch-per-worker", "8", "--data", "synthetic", "--steps", "2", "--device", "cpu"]
    record = ["--record", str(tmp_path)]
    done = forked.launch([*argv, *flags, *record], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Total images/sec on 2 worker(s)" in done.stdout
    reports = store.read_ranks(tmp_path, 2)
    assert reports[0].communication_bytes == ZERO_2
    assert reports[0].memory["optimizer"] == FLAT * 4  # momentum, and the second copy: half of each
    assert reports[0].loss_last != reports[1].loss_last  # each its own share of the data
    if (os.cpu_count() or 1) >= 2:
        assert not set(reports[0].cores) & set(reports[1].cores)


def test_fp64_is_refused_and_not_rounded() -> None:
    done = forked.run([sys.executable, CHECKOUT / "fsdp/deepspeed_zero.py", "--precision", "fp64"])
    assert done.returncode == 2 and "invalid choice: 'fp64'" in done.stderr
