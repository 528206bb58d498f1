"""DDP: its buckets and compiled kernels; and DataParallel without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gated
import pytest
from trained import P, a_trial, ranks_of

from scaling_study.machine import Machine
from scaling_study.processes.process import Exit
from scaling_study.records import outcome
from scaling_study.study import support
from scaling_study.trial import Trial

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
    gate = gated.gate_of(asked)
    assert (gate.workers, gate.processes, gate.launcher) == (2, 1, "python")
    answer = gated.judged(asked, tmp_path, tmp_path / "stand_in.py")
    (report,) = outcome.judge(gate, tmp_path, Exit(0, 1.0)).ranks
    assert (report.world_size, report.samples_per_step, report.allreduce_bytes) == (1, 16, None)
    assert report.learning_rate == pytest.approx(0.02)
    assert answer["verdict"] == "passed", answer
