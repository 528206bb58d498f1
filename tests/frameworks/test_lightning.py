"""Lightning for real: two CPU processes through Fabric, and its FSDP as far as it goes without a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import forked
import pytest

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch.launchers import Command, command
from scaling_study.machine import installed
from scaling_study.records import store
from scaling_study.records.store import RankReport
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial, Window

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not installed("lightning"), reason="lightning is not installed")]
PARAMETERS = 78_042  # of resnet8: three blocks, and the stem and classifier outside them
OUTSIDE = 1_114
BLOCKS = PARAMETERS - OUTSIDE
QUICK = Window(1, 2, 0.0, None, 2)


def a_trial(framework: str, **keys: object) -> Trial:
    keys = {"model": "resnet8", "batch_per_worker": 8, "data": "synthetic", "window": QUICK, **keys}
    return Trial(framework=framework, workers=2, launcher="torchrun", device="cpu", cores_per_worker=1, **keys)  # type: ignore[arg-type]


def run(line: Command) -> subprocess.CompletedProcess[str]:
    return forked.run(line.argv, env={**line.env, "CUDA_VISIBLE_DEVICES": ""})


def on_cpu(line: Command) -> Command:
    """The same command with Lightning's check for a GPU stepped over."""
    script = next(i for i, word in enumerate(line.argv) if word.endswith("lightning_fsdp.py"))
    return Command((*line.argv[:script], str(CHECKOUT / "tests/fsdp_on_cpu.py"), *line.argv[script:]), line.env)


def ranks_of(line: Command, folder: Path) -> list[RankReport]:
    done = run(line)
    assert done.returncode == 0, done.stderr[-3000:]
    return store.read_ranks(folder, 2)


# --- DDP ---


def test_ddp_reduces_every_gradient_once_in_the_precision_asked_for(tmp_path: Path) -> None:
    for rank in ranks_of(command(a_trial("lightning_ddp", allreduce="bf16"), tmp_path), tmp_path):
        assert rank.communication_bytes == {"allreduce": 2 * PARAMETERS}
        assert rank.parameters == PARAMETERS
        assert rank.memory["buckets"] == 0, "gradients are views of them"
        assert [rank.memory[kind] for kind in ("parameters", "gradients", "optimizer")] == [4 * PARAMETERS] * 3


def test_ddp_does_not_let_lightning_turn_fp16_into_bf16(tmp_path: Path) -> None:
    done = run(command(a_trial("lightning_ddp", precision="fp16"), tmp_path))
    assert done.returncode != 0 and "on a CPU Lightning computes in bf16 instead" in done.stderr


# --- FSDP ---


def test_fsdp_is_refused_on_a_cpu_by_lightning_itself(tmp_path: Path) -> None:
    done = run(command(a_trial("lightning_fsdp"), tmp_path))
    assert done.returncode != 0
    assert "You selected the FSDP strategy but FSDP is only available on GPU" in done.stderr
    assert FRAMEWORKS["lightning_fsdp"].needs_gpu


@pytest.mark.parametrize(("stage", "gathered"), [(3, 2 * BLOCKS + OUTSIDE), (2, PARAMETERS)])
def test_fsdp_wraps_block_by_block_and_reduces_into_shards(tmp_path: Path, stage: int, gathered: int) -> None:
    trial = a_trial("lightning_fsdp", model="resnet8_groupnorm", zero_stage=stage, allreduce="bf16")
    for rank in ranks_of(on_cpu(command(trial, tmp_path)), tmp_path):
        assert rank.communication_bytes == {"all_gather": 4 * gathered, "reduce_scatter": 2 * PARAMETERS}
        assert rank.backend["units"] == 4, "three blocks and what is left"
        assert [rank.memory[kind] for kind in ("parameters", "gradients", "optimizer")] == [2 * PARAMETERS] * 3
