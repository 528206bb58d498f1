"""Frameworks that shard or wrap a model: what a timed step hands over and what each rank keeps, beside the gates of
test_conformance.py, which train without momentum; and what only one of them does."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import forked
import pytest
import torch
from trained import BLOCKS, LAST_BLOCK, OUTSIDE, PARAMETERS, P, a_trial, ran, ranks_of

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.worker import fairscale_on_cpu

BUFFERS = 336 * 2 * 4 + 9 * 8  # of its BatchNorms: two statistics of 336 channels, nine counters
HALVES = {"parameters": 2 * P, "gradients": 2 * P, "optimizer": 2 * P}  # bytes in fp32, of two workers
WHOLE = {"parameters": 4 * P, "gradients": 4 * P, "optimizer": 4 * P}
ON_CPU = {"lightning_fsdp": [CHECKOUT / "tests/fsdp_on_cpu.py"]}  # its check for a GPU is stepped over


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "keys", "moved", "kept"),
    [
        (
            "torch_fsdp2",  # stage 3 if nothing is said
            {"tuned_for": "memory", "allreduce": "fp16"},
            {"all_gather": 2 * 4 * P, "reduce_scatter": 2 * P},
            {**HALVES, "gathered": 4 * (LAST_BLOCK + OUTSIDE), "buckets": 2 * LAST_BLOCK},
        ),
        ("lightning_ddp", {"allreduce": "bf16"}, {"allreduce": 2 * P}, {**WHOLE, "buckets": 0}),
        (
            "lightning_fsdp",
            {"model": "resnet8_groupnorm", "zero_stage": 2, "allreduce": "bf16"},
            {"all_gather": 4 * P, "reduce_scatter": 2 * P},
            HALVES,
        ),
        (
            "fairscale_fsdp",  # its default bucket, and one of two shards
            {"zero_stage": 3},
            {"all_gather": 4 * (2 * BLOCKS + OUTSIDE), "reduce_scatter": 4 * P},
            {**HALVES, "buckets": pytest.approx(1.5 * 25 * 2**20, rel=1e-6)},
        ),
        (
            "fairscale_fsdp",
            {"model": "resnet8_groupnorm", "precision": "fp16", "allreduce": "fp16"},
            {"all_gather": 2 * (2 * BLOCKS + OUTSIDE), "reduce_scatter": 2 * P},
            {},
        ),
        (
            "fairscale_fsdp",
            {"model": "resnet8_groupnorm", "precision": "fp16", "allreduce": "fp32"},
            {"all_gather": 2 * (2 * BLOCKS + OUTSIDE), "reduce_scatter": 4 * P},
            {},
        ),
    ],
)
def test_a_timed_step_hands_over_and_keeps_what_its_scheme_says(
    framework: str, keys: Mapping[str, Any], moved: Mapping[str, int], kept: Mapping[str, int], tmp_path: Path
) -> None:
    for rank in ranks_of(a_trial(framework, **keys), tmp_path, *ON_CPU.get(framework, ())):
        assert rank.communication_bytes == moved
        assert rank.allreduce_bytes == moved.get("reduce_scatter", moved.get("allreduce"))
        assert {kind: rank.memory[kind] for kind in kept} == kept
        assert rank.parameters == PARAMETERS
        assert rank.backend.get("units", 4) == 4, "three blocks and what is left"


@pytest.mark.slow
def test_oss_reduces_to_owners_and_broadcasts_weights(tmp_path: Path) -> None:
    ranks = ranks_of(a_trial("fairscale_oss", allreduce="fp16", buffers="synced"), tmp_path)
    for rank in ranks:
        assert rank.communication_bytes == {"reduce": 2 * P, "broadcast": 4 * P + BUFFERS}
        assert rank.memory["parameters"] == 4 * P, "every worker has them all"
        assert "buckets" not in rank.memory, "gradients are reduced where they are"
    for kind in ("gradients", "optimizer"):  # dealt out in order, each to who has least
        assert [rank.memory[kind] for rank in ranks] == [196_160, 116_008]


@pytest.mark.slow
def test_fsdp_is_refused_on_a_cpu_by_lightning_itself(tmp_path: Path) -> None:
    done = ran(a_trial("lightning_fsdp"), tmp_path)
    assert done.returncode != 0 and "FSDP is only available on GPU" in done.stderr
    assert FRAMEWORKS["lightning_fsdp"].needs_gpu


# --- DeepSpeed by its own launcher ---


@pytest.mark.slow
def test_the_bare_deepspeed_command_works_from_elsewhere_and_means_stage_2(tmp_path: Path) -> None:
    argv = [str(Path(sys.executable).parent / "deepspeed"), "--num_gpus", "2", str(CHECKOUT / "fsdp/deepspeed_zero.py")]
    flags = ["--model", "resnet8", "--batch-per-worker", "8", "--data", "synthetic", "--steps", "2", "--device", "cpu"]
    done = forked.launch([*argv, *flags, "--record", str(tmp_path)], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Total images/sec on 2 worker(s)" in done.stdout
    reports, flat = store.read_ranks(tmp_path, 2), 4 * (P + 2)  # one tensor, padded to a multiple of four
    assert reports[0].communication_bytes == {"allreduce": 4 * P + 4, "all_gather": flat}  # 4: the gradients' norm
    assert reports[0].memory["optimizer"] == flat  # momentum, and the second copy: half of each
    assert reports[0].loss_last != reports[1].loss_last  # each its own share of the data
    if (os.cpu_count() or 1) >= 2:
        assert not set(reports[0].cores) & set(reports[1].cores)


# --- FairScale's fully sharded wrapper ---

COUNTING = """
import runpy, sys
from fairscale.nn import FullyShardedDataParallel as Wrapper
calls, hook = [], Wrapper._post_backward_hook
Wrapper._post_backward_hook = lambda *given: calls.append(given) or hook(*given)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("hooks called:", len(calls))
"""


@pytest.mark.slow
def test_fairscales_steps_do_not_grow_longer_with_every_step(tmp_path: Path) -> None:
    """FairScale leaves its hooks on the parameters: without our care eight steps of four units call 4 + ... + 32."""
    (tmp_path / "counting.py").write_text(COUNTING)
    alone = a_trial("fairscale_fsdp", workers=1, allreduce="none", launcher="python")
    done = ran(alone, tmp_path, tmp_path / "counting.py")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("hooks called: 32\n")


def test_fairscales_adapter_changes_two_modules_and_one_method(monkeypatch: pytest.MonkeyPatch) -> None:
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
