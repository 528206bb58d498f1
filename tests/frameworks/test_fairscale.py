"""FairScale: what its two wrappers hand over and hold, what they refuse, and its own commands."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import forked
import pytest
import torch

from scaling_study.launch.launchers import Command, command
from scaling_study.machine import installed
from scaling_study.records import store
from scaling_study.records.store import RankReport
from scaling_study.trial import Trial, Window
from scaling_study.worker import fairscale_on_cpu

pytestmark = pytest.mark.skipif(not installed("fairscale"), reason="fairscale is not installed")
PARAMETERS = 78_042  # of resnet8: three blocks, and the stem and classifier outside them
OUTSIDE = 1_114
BLOCKS = PARAMETERS - OUTSIDE
BUFFERS = 336 * 2 * 4 + 9 * 8  # of its BatchNorms: two statistics of 336 channels, nine counters
OWNED = [196_160, 116_008]  # bytes of parameters by owner: dealt out in order, each to who has least
QUICK = Window(1, 2, 0.0, None, 2)  # eight steps in all: four warm up, two are timed, one counted, one instrumented

COUNTING = """
import runpy, sys
from fairscale.nn import FullyShardedDataParallel as Wrapper
calls, hook = [], Wrapper._post_backward_hook
Wrapper._post_backward_hook = lambda *given: calls.append(given) or hook(*given)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("hooks called:", len(calls))
"""


def a_trial(framework: str, **keys: object) -> Trial:
    keys = {"model": "resnet8", "batch_per_worker": 8, "data": "synthetic", "window": QUICK, **keys}
    return Trial(framework=framework, workers=2, launcher="torchrun", device="cpu", cores_per_worker=1, **keys)  # type: ignore[arg-type]


def run(line: Command) -> subprocess.CompletedProcess[str]:
    return forked.run(line.argv, env={**line.env, "CUDA_VISIBLE_DEVICES": ""})


def ranks_of(trial: Trial, folder: Path) -> list[RankReport]:
    done = run(command(trial, folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return store.read_ranks(folder, 2)


# --- the fully sharded wrapper ---


@pytest.mark.slow
def test_fsdp_gathers_blocks_twice_and_reduces_into_shards(tmp_path: Path) -> None:
    for rank in ranks_of(a_trial("fairscale_fsdp", zero_stage=3), tmp_path):
        gathered = 4 * (2 * BLOCKS + OUTSIDE)
        assert rank.communication_bytes == {"all_gather": gathered, "reduce_scatter": 4 * PARAMETERS}
        assert rank.allreduce_bytes == 4 * PARAMETERS
        assert rank.parameters == PARAMETERS
        assert [rank.memory[kind] for kind in ("parameters", "gradients", "optimizer")] == [2 * PARAMETERS] * 3
        assert rank.memory["buckets"] == pytest.approx(1.5 * 25 * 2**20, rel=1e-6), "its default, and one of two shards"
        assert rank.backend["units"] == 4, "three blocks and what is left"
        assert rank.backend["cpu adapter"] is True


@pytest.mark.slow
@pytest.mark.parametrize(("allreduce", "bytes_a_gradient"), [("fp16", 2), ("fp32", 4)])
def test_fsdp_computing_in_fp16_gathers_fp16_and_may_reduce_it(
    tmp_path: Path, allreduce: str, bytes_a_gradient: int
) -> None:
    trial = a_trial("fairscale_fsdp", model="resnet8_groupnorm", precision="fp16", allreduce=allreduce)
    for rank in ranks_of(trial, tmp_path):
        assert rank.communication_bytes == {
            "all_gather": 2 * (2 * BLOCKS + OUTSIDE), "reduce_scatter": bytes_a_gradient * PARAMETERS,
        }  # fmt: skip


@pytest.mark.slow
def test_fsdp_refuses_fp16_gradients_of_fp32_compute(tmp_path: Path) -> None:
    done = run(command(a_trial("fairscale_fsdp", allreduce="fp16"), tmp_path))
    assert done.returncode != 0 and "FairScale reduces gradients as they were computed" in done.stderr


@pytest.mark.slow
def test_fsdp_steps_do_not_grow_longer_with_every_step(tmp_path: Path) -> None:
    """FairScale leaves its hooks on the parameters: without our care eight steps of four units call 4 + ... + 32."""
    line = command(replace(a_trial("fairscale_fsdp"), workers=1, allreduce="none", launcher="python"))
    (tmp_path / "counting.py").write_text(COUNTING)
    done = run(Command((line.argv[0], str(tmp_path / "counting.py"), *line.argv[1:])))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("hooks called: 32\n")


# --- the sharded optimiser ---


@pytest.mark.slow
def test_oss_reduces_to_owners_and_broadcasts_weights(tmp_path: Path) -> None:
    ranks = ranks_of(a_trial("fairscale_oss", allreduce="fp16", buffers="synced"), tmp_path)
    for rank in ranks:
        assert rank.communication_bytes == {"reduce": 2 * PARAMETERS, "broadcast": 4 * PARAMETERS + BUFFERS}
        assert rank.allreduce_bytes == 2 * PARAMETERS
        assert rank.memory["parameters"] == 4 * PARAMETERS, "every worker has them all"
        assert "buckets" not in rank.memory, "gradients are reduced where they are"
    for kind in ("gradients", "optimizer"):
        assert [rank.memory[kind] for rank in ranks] == OWNED, "each has one owner"


# --- the adapter ---


def test_the_adapter_changes_two_modules_and_one_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "record_stream", torch.Tensor.record_stream)  # put back afterwards
    wrapper, bucketer, cuda = ModuleType("wrapper"), ModuleType("bucketer"), torch.cuda
    fairscale_on_cpu.adapt(wrapper, bucketer)
    theirs = wrapper.torch
    assert theirs.Tensor is torch.Tensor and theirs.float32 is torch.float32, "all else is torch"
    assert torch.cuda is cuda and theirs.cuda is not cuda, "nobody else sees it"
    assert theirs.cuda.is_available()
    stream = theirs.cuda.Stream()
    with theirs.cuda.stream(stream):
        assert theirs.cuda.current_stream() is stream, "the wrapper asserts on which stream it is"
    assert theirs.cuda.current_stream() is not stream
    assert bucketer.enable_nccl_base_collectives is False
    torch.ones(1).record_stream(stream)  # type: ignore[arg-type]
