"""DeepSpeed as its own launcher starts it. What its stages move and keep is in test_conformance.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import forked
import pytest

from scaling_study.records import store
from scaling_study.settings import CHECKOUT

pytestmark = pytest.mark.slow

PARAMETERS = 78_042  # of resnet8; no tensor of it needs padding for two workers
FLAT = 78_044  # as one, padded to a multiple of four
NORM = 4  # of the gradients
ZERO_2 = {"allreduce": PARAMETERS * 4 + NORM, "all_gather": FLAT * 4}


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
