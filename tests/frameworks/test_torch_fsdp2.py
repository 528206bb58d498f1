"""torch FSDP2: what it holds of a timed step, and one worker. The rest is in test_conformance.py."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import forked
import pytest

from scaling_study.launch import launchers
from scaling_study.records import store
from scaling_study.records.store import RankReport
from scaling_study.trial import Trial, Window

pytestmark = pytest.mark.slow

PARAMETERS = 78_042  # of resnet8; no tensor needs padding for two workers
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


def test_one_worker_moves_nothing(tmp_path: Path) -> None:
    (report,) = run(with_keys(workers=1, allreduce="none"), tmp_path)
    assert report.communication_bytes == {}
