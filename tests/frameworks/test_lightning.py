"""Lightning for real: two CPU processes through Fabric, and its FSDP as far as it goes without a GPU."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import forked
import pytest

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch.launchers import Command, command
from scaling_study.machine import installed
from scaling_study.parity import check
from scaling_study.records import store
from scaling_study.records.store import RankReport
from scaling_study.settings import CHECKOUT
from scaling_study.study import gates
from scaling_study.trial import Trial, Window

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not installed("lightning"), reason="lightning is not installed")]
PARAMETERS = 78_042  # of resnet8: three blocks, and the stem and classifier outside them
OUTSIDE = 1_114
BLOCKS = PARAMETERS - OUTSIDE
BUFFERS = 336 * 2 * 4 + 9 * 8  # of its BatchNorms: two statistics of 336 channels, nine counters
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


def verdict(trial: Trial, line: Command, folder: Path) -> str:
    """What the parity gate says of a gate's trial, run by `line`."""
    store.write_json(folder / "trial.json", {**trial.to_dict(), "window": asdict(trial.window)})
    done = run(line)
    assert done.returncode == 0, done.stderr[-3000:]
    check.main(folder)
    return str(json.loads((folder / "parity.json").read_text())["verdict"])


# --- DDP ---


@pytest.mark.parametrize(
    ("keys", "moved"),
    [
        ({"allreduce": "fp32", "buffers": "synced"}, {"allreduce": 4 * PARAMETERS, "broadcast": BUFFERS}),
        ({"allreduce": "bf16"}, {"allreduce": 2 * PARAMETERS}),
    ],
)
def test_ddp_reduces_every_gradient_once_in_the_precision_asked_for(
    tmp_path: Path, keys: dict[str, str], moved: dict[str, int]
) -> None:
    for rank in ranks_of(command(a_trial("lightning_ddp", **keys), tmp_path), tmp_path):
        assert rank.communication_bytes == moved
        assert rank.parameters == PARAMETERS
        assert rank.memory["buckets"] == 0, "gradients are views of them"
        assert [rank.memory[kind] for kind in ("parameters", "gradients", "optimizer")] == [4 * PARAMETERS] * 3


@pytest.mark.parametrize("keys", [{}, {"accumulation": 2}, {"allreduce": "fp16"}, {"precision": "bf16"}], ids=str)
def test_ddp_trains_what_one_process_would(tmp_path: Path, keys: dict[str, object]) -> None:
    *_, gate = gates.gates_of(a_trial("lightning_ddp", **keys))
    assert verdict(gate, command(gate, tmp_path), tmp_path) == "passed"


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


def test_fsdp_trains_what_one_process_would(tmp_path: Path) -> None:
    gate = next(gates.gates_of(a_trial("lightning_fsdp")))
    assert gate.precision == "fp32", "Lightning's FSDP has no fp64"
    assert verdict(gate, on_cpu(command(gate, tmp_path)), tmp_path) == "passed"
