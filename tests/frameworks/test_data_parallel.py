"""Frameworks that wrap or shard a whole model: what a timed step hands over and what each rank keeps, beside the gates
of test_conformance.py, which train without momentum; what only one of them does; and the studies of sharding."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import forked
import pytest
import torch
from trained import (
    BLOCKS,
    LAST_BLOCK,
    ON_CPU,
    OUTSIDE,
    PARAMETERS,
    P,
    a_trial,
    after_doing,
    gate_of,
    judged,
    ran,
    ranks_of,
)

from scaling_study.estimate import Estimate
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import Machine
from scaling_study.processes.process import Exit
from scaling_study.records import outcome, store
from scaling_study.settings import CHECKOUT
from scaling_study.study import plan, study, support
from scaling_study.study.plan import Plan
from scaling_study.trial import Trial
from scaling_study.worker.script import put_fairscale_on_cpu
from tests.net import frozen

BUFFERS = 336 * 2 * 4 + 9 * 8  # of its BatchNorms: two statistics of 336 channels, nine counters
HALVES = {"parameters": 2 * P, "gradients": 2 * P, "optimizer": 2 * P}  # bytes in fp32, of two workers
WHOLE = {"parameters": 4 * P, "gradients": 4 * P, "optimizer": 4 * P}


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "keys", "moved", "kept"), [
    ("torch_fsdp2", {"tuned_for": "memory", "allreduce": "fp16"},  # stage 3 if nothing is said
     {"all_gather": 2 * 4 * P, "reduce_scatter": 2 * P},
     {**HALVES, "gathered": 4 * (LAST_BLOCK + OUTSIDE), "buckets": 2 * LAST_BLOCK}),
    ("lightning_ddp", {"allreduce": "bf16"}, {"allreduce": 2 * P}, {**WHOLE, "buckets": 0}),
    ("lightning_fsdp", {"model": "resnet8_groupnorm", "zero_stage": 2, "allreduce": "bf16"},
     {"all_gather": 4 * P, "reduce_scatter": 2 * P}, HALVES),
    ("fairscale_fsdp", {"zero_stage": 3}, {"all_gather": 4 * (2 * BLOCKS + OUTSIDE), "reduce_scatter": 4 * P},
     {**HALVES, "buckets": pytest.approx(1.5 * 25 * 2**20, rel=1e-6)}),  # its default bucket, and one of two shards
    *(("fairscale_fsdp", {"model": "resnet8_groupnorm", "precision": "fp16", "allreduce": allreduce},
       {"all_gather": 2 * (2 * BLOCKS + OUTSIDE), "reduce_scatter": size * P}, {})
      for allreduce, size in (("fp16", 2), ("fp32", 4))),
])  # fmt: skip
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


# --- FSDP2 in shard groups ---

GROUPS = {  # what a script of hybrid sharding may get wrong -> what its gate says of weights after a step
    "divided by a group's workers": "the update is 2.00 times the right one",
    "each group for itself": "off by",
}
FAULTY = """
import sys
from torch.distributed.fsdp import FSDPModule
from scaling_study.worker import with_fsdp2

mesh_of, summed = with_fsdp2.mesh_of, FSDPModule.set_force_sum_reduction_for_comms

def divided_by_a_group(unit, enable):
    summed(unit, enable)
    unit.set_gradient_divide_factor(1.0)  # a group's workers, in place of all

if sys.argv.pop(1) == "each group for itself":
    with_fsdp2.mesh_of = lambda *given: mesh_of(*given)["shard"]
else:
    FSDPModule.set_force_sum_reduction_for_comms = divided_by_a_group
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", GROUPS)
def test_shard_groups_that_are_not_averaged_fail_their_gate(fault: str, tmp_path: Path) -> None:
    verdict = judged(a_trial("torch_fsdp2", shard_group=1), tmp_path, after_doing(tmp_path, FAULTY), fault)["verdict"]
    assert verdict.startswith("weights after step 1: ") and GROUPS[fault] in verdict


# --- DeepSpeed by its own launcher ---


@pytest.mark.slow
def test_the_bare_deepspeed_command_works_from_elsewhere_and_means_stage_2(tmp_path: Path) -> None:
    argv = [str(Path(sys.executable).parent / "deepspeed"), "--num_gpus", "2", str(CHECKOUT / "fsdp/deepspeed_zero.py")]
    flags = ["--model", "resnet8", "--batch-per-worker", "8", "--data", "synthetic", "--steps", "2", "--device", "cpu"]
    done = forked.ended(forked.launch([*argv, *flags, "--record", str(tmp_path)], cwd=tmp_path))
    assert "Total images/sec on 2 worker(s)" in done.stdout
    reports, flat = store.read_ranks(tmp_path, 2), 4 * (P + 2)  # one tensor, padded to a multiple of four
    assert reports[0].communication_bytes == {"allreduce": 4 * P + 4, "all_gather": flat}  # 4: the gradients' norm
    assert reports[0].memory["optimizer"] == flat  # momentum, and the second copy: half of each
    assert reports[0].loss_last != reports[1].loss_last  # each its own share of the data
    if (os.cpu_count() or 1) >= 2:
        assert not set(reports[0].cores) & set(reports[1].cores)


# --- FairScale's fully sharded wrapper ---

COUNTING = """
import atexit
from fairscale.nn import FullyShardedDataParallel as Wrapper
calls, hook = [], Wrapper._post_backward_hook
Wrapper._post_backward_hook = lambda *given: calls.append(given) or hook(*given)
atexit.register(lambda: print("hooks called:", len(calls)))
"""


@pytest.mark.slow
def test_fairscales_steps_do_not_grow_longer_with_every_step(tmp_path: Path) -> None:
    """FairScale leaves its hooks on the parameters: without our care eight steps of four units call 4 + ... + 32."""
    alone = a_trial("fairscale_fsdp", workers=1, allreduce="none", launcher="python")
    done = forked.ended(ran(alone, tmp_path, after_doing(tmp_path, COUNTING)))
    assert done.stdout.endswith("hooks called: 32\n")


def test_fairscales_adapter_changes_two_modules_and_one_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "record_stream", torch.Tensor.record_stream)  # put back afterwards
    wrapper, bucketer, cuda = ModuleType("wrapper"), ModuleType("bucketer"), torch.cuda
    put_fairscale_on_cpu(wrapper, bucketer)
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


# --- DDP: buckets and compiled kernels


BUCKETS = """
import json, runpy, sys
folder, *sys.argv = sys.argv[1:]
script = runpy.run_path(sys.argv[0])
names, original = script["build"].__globals__, script["DistributedDataParallel"]
wrapped = []
names["DistributedDataParallel"] = lambda *a, **k: wrapped.append(original(*a, **k)) or wrapped[0]
script["run"]("torch_ddp", script["join"], script["build"])
said = wrapped[0]._get_ddp_logging_data()
if said["rank"] == 0:
    json.dump(said["rebuilt_bucket_sizes"], open(f"{folder}/buckets.json", "w"))
"""


@pytest.mark.slow
def test_bucket_bytes_are_the_buckets_that_ddp_makes(tmp_path: Path) -> None:
    (tmp_path / "buckets.py").write_text(BUCKETS)
    ranks = ranks_of(a_trial("torch_ddp", bucket_bytes=100_000), tmp_path, tmp_path / "buckets.py", tmp_path)
    sizes = [int(size) for size in json.loads((tmp_path / "buckets.json").read_text()).split(",")]
    assert len(sizes) > 1 and sum(sizes) == 4 * P
    assert all(size < 100_000 + 4 * 64 * 64 * 9 for size in sizes)  # a bucket is full with the tensor that fills it
    assert {rank.allreduce_bytes for rank in ranks} == {4 * P}


@pytest.mark.long
def test_compiled_kernels_train_with_two_workers(tmp_path: Path) -> None:
    plain = ranks_of(a_trial("torch_ddp"), tmp_path / "plain")
    compiled = ranks_of(a_trial("torch_ddp", compile=True), tmp_path / "compiled")
    assert {rank.allreduce_bytes for rank in compiled} == {4 * P}
    assert [r.loss_first for r in compiled] == pytest.approx([r.loss_first for r in plain], rel=1e-4)


# --- DataParallel: one process, several GPUs ---


def test_dataparallel_needs_a_gpu_for_each_worker() -> None:
    bare = Machine(2, "Xeon", 8 << 30, (), {"torch": "2.15.0", "torchvision": "0.29.2"})
    two = replace(bare, gpus=("H100", "H100"))
    trial = Trial(framework="torch_dp", workers=2, device="cuda", cores_per_worker=1)
    assert support.unsupported(replace(trial, device="cpu"), bare).startswith("torch's DataParallel splits a batch")
    assert support.unsupported(trial, two) == ""
    assert "4 workers need 4 GPUs" in support.unsupported(replace(trial, workers=4), two)
    assert "compiled" in support.unsupported(replace(trial, compile=True), two)


# What DataParallel does, without CUDA: the batch in equal parts, each through the weights of one model; of BatchNorm's
# buffers the first replica's are kept. All else in the script runs as it is.
STAND_IN = """
import runpy, sys
import torch
from torch import nn
from torch.func import functional_call
sys.argv = sys.argv[1:]
script = runpy.run_path(sys.argv[0])

class OnOneCPU(nn.Module):
    def __init__(self, module, device_ids):
        super().__init__()
        self.module, self.replicas = module, len(device_ids)
    def forward(self, images):
        first, *others = images.chunk(self.replicas)
        parameters = dict(self.module.named_parameters())
        def replica(part):
            copies = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
            return functional_call(self.module, {**parameters, **copies}, (part,))
        outputs = [replica(part) for part in others]
        return torch.cat([self.module(first), *outputs])

script["nn"].DataParallel = OnOneCPU
names = script["build"].__globals__
names.update(require_gpus=lambda trial: None, claim_device=lambda trial, rank: torch.device("cpu"))
script["run"]("torch_dp", script["join"], script["build"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
def test_dataparallel_trains_what_two_workers_would(tmp_path: Path, accumulation: int) -> None:
    """All but CUDA's part: the global batch, the mean over it, the rate, the report, the gate's view of one process."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    asked = a_trial("torch_dp", launcher="python", accumulation=accumulation)
    gate = gate_of(asked)
    assert (gate.workers, gate.processes, gate.launcher) == (2, 1, "python")
    answer = judged(asked, tmp_path, tmp_path / "stand_in.py")
    (report,) = outcome.judge(gate, tmp_path, Exit(0, 1.0)).ranks
    assert (report.world_size, report.samples_per_step, report.allreduce_bytes) == (1, 16, None)
    assert report.learning_rate == pytest.approx(0.02)
    assert answer["verdict"] == "passed", answer


# --- the studies of sharding, planned on machines made up for it: which trials they expand to is held by tests/net


TWO_CORES = frozen.MACHINES["2 cores"]
TWO_GPUS = replace(frozen.MACHINES["2 GPUs"], gpus=("NVIDIA A10G",) * 2)


def planned(name: str, machine: Machine, small: bool = False) -> Plan:
    return plan.make(study.load(CHECKOUT / "studies" / f"{name}.yaml", small), machine)


def test_every_number_of_the_cpu_study_is_comparable_and_stands_behind_a_gate() -> None:
    made = planned("distributed_dl_fsdp_cpu", TWO_CORES)
    there = {gate.trial.id for gate in made.gates}
    assert Counter(p.unsupported for p in made.configurations) == {"": 4 * 72 + 36}
    assert all(set(support.gate_ids(p.trial)) <= there for p in made.configurations)
    assert not [p.trial.framework for p in made.configurations if FRAMEWORKS[p.trial.framework].not_comparable_on_cpu]


def test_the_cpu_study_in_small_takes_under_10_minutes_on_2_cores() -> None:
    made = planned("distributed_dl_fsdp_cpu", TWO_CORES, small=True)
    estimate, judged = Estimate(), 6 * len(made.gates)  # each gate is judged by a process of its own
    assert sum(map(estimate, made.trials())) + judged < 600


@pytest.mark.parametrize(("precision", "allreduce", "supported"), [
    ("fp16", "fp16", True), ("fp16", "fp32", True), ("bf16", "fp32", True), ("fp32", "fp16", False),
    ("bf16", "fp16", False),
])  # fmt: skip
def test_fairscales_gradients_travel_as_they_were_computed(precision: str, allreduce: str, supported: bool) -> None:
    trial = Trial("fairscale_fsdp", precision=precision, allreduce=allreduce, workers=2, device="cuda")
    reason = "" if supported else FRAMEWORKS["fairscale_fsdp"].reduces_as_it_computes
    assert support.unsupported(trial, TWO_GPUS) == reason
