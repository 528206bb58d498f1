"""DDP: buckets, micro-batches, one worker, compiled kernels; and DataParallel without a GPU."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import forked
import pytest
import torch

from scaling_study.launch import launchers
from scaling_study.machine import Machine
from scaling_study.processes.process import Exit
from scaling_study.records import outcome, store
from scaling_study.settings import CHECKOUT
from scaling_study.study import support
from scaling_study.study.support import unsupported
from scaling_study.trial import Trial

BIN = Path(sys.executable).parent
DDP, DP = CHECKOUT / "data_parallel/torch_ddp.py", CHECKOUT / "data_parallel/torch_dp.py"
QUICK = ["--data=synthetic", "--batch-per-worker=8", "--steps=4", "--warmup-steps=1", "--cores-per-worker=1"]
PARAMETERS = 78_042  # of resnet8


def run(argv: list[str] | tuple[str, ...], **env: str) -> None:
    done = forked.run(argv, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def trained(folder: Path, *flags: str, workers: int = 2, model: str = "resnet8") -> list[store.RankReport]:
    trial = Trial(framework="torch_ddp", workers=workers)
    program = [sys.executable, str(DDP), "--model", model, *QUICK, *flags, "--record", str(folder)]
    run(launchers.torchrun(trial, program, BIN).argv)
    return store.read_ranks(folder, workers)


def gate_of(trial: Trial, folder: Path) -> Trial:
    """The trial's last gate (the 16-bit one, where there is one), ready to run in `folder`."""
    *_, gate = support.gates_of(replace(trial, device="cpu", data="synthetic"))
    store.write_json(folder / "trial.json", {**gate.to_dict(), "window": asdict(gate.window)})
    return gate


def judged(folder: Path) -> dict:
    run([sys.executable, "-m", "scaling_study.parity.compare", str(folder)])
    return json.loads((folder / "parity.json").read_text())


@pytest.mark.slow
def test_one_worker_sends_nothing_with_torchrun_or_without(tmp_path):
    (alone,) = trained(tmp_path / "torchrun", "--allreduce", "fp16", workers=1)
    run([sys.executable, str(DDP), "--model", "resnet8", *QUICK, "--record", str(tmp_path / "python")])
    for report in (alone, *store.read_ranks(tmp_path / "python", 1)):
        assert (report.allreduce_bytes, report.communication_bytes, report.world_size) == (0, {}, 1)


BUCKETS = """
import json, runpy, sys
script = runpy.run_path(sys.argv[1])
names, original = script["build"].__globals__, script["DistributedDataParallel"]
wrapped = []
names["DistributedDataParallel"] = lambda *a, **k: wrapped.append(original(*a, **k)) or wrapped[0]
folder, sys.argv[1:] = sys.argv[2], sys.argv[3:]
script["run"]("torch_ddp", script["join"], script["build"])
said = wrapped[0]._get_ddp_logging_data()
if said["rank"] == 0:
    json.dump(said["rebuilt_bucket_sizes"], open(f"{folder}/buckets.json", "w"))
"""


@pytest.mark.slow
def test_bucket_bytes_are_the_buckets_that_ddp_makes(tmp_path):
    (tmp_path / "buckets.py").write_text(BUCKETS)
    trial = Trial(framework="torch_ddp", workers=2)
    program = [sys.executable, str(tmp_path / "buckets.py"), str(DDP), str(tmp_path), "--model", "resnet8", *QUICK]
    run(launchers.torchrun(trial, [*program, "--bucket-bytes", "100000", "--record", str(tmp_path)], BIN).argv)
    sizes = [int(size) for size in json.loads((tmp_path / "buckets.json").read_text()).split(",")]
    assert len(sizes) > 1 and sum(sizes) == 4 * PARAMETERS
    assert all(size < 100_000 + 4 * 64 * 64 * 9 for size in sizes)  # a bucket is full with the tensor that fills it
    assert {r.allreduce_bytes for r in store.read_ranks(tmp_path, 2)} == {4 * PARAMETERS}


@pytest.mark.slow
def test_micro_batches_add_up_to_the_same_step(tmp_path):
    """In fp64, where only a wrong sum can differ; GroupNorm, since BatchNorm sees each micro-batch by itself."""
    weights = []
    for parts in (1, 2):  # both of eight samples
        folder = tmp_path / str(parts)
        gate = gate_of(Trial(framework="torch_ddp", model="resnet8_groupnorm", workers=2, accumulation=parts), folder)
        run(launchers.torchrun(gate, [sys.executable, str(DDP), *gate.to_argv(), "--record", str(folder)], BIN).argv)
        weights.append(torch.load(folder / "parity/rank-0.pt", weights_only=True)["weights"])
        assert {r.allreduce_bytes for r in store.read_ranks(folder, 2)} == {8 * PARAMETERS}  # once a step
        assert judged(folder)["verdict"] == "passed"
    for moment in ("first", "one", "last"):
        for name, value in weights[0][moment].items():
            assert torch.allclose(value, weights[1][moment][name], rtol=1e-11, atol=1e-14), (moment, name)


@pytest.mark.long
def test_compiled_kernels_train_with_two_workers(tmp_path):
    plain, compiled = trained(tmp_path / "plain"), trained(tmp_path / "compiled", "--compile")
    assert {r.allreduce_bytes for r in compiled} == {4 * PARAMETERS}
    assert [r.loss_first for r in compiled] == pytest.approx([r.loss_first for r in plain], rel=1e-4)


# --- DataParallel: one process, several GPUs ---


@pytest.mark.slow
def test_dataparallel_without_a_gpu_says_why_in_one_line():
    done = forked.run([sys.executable, DP, "--workers", "2"], env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1
    (said,) = done.stderr.strip().splitlines()
    assert said.startswith("torch's DataParallel splits a batch over GPUs") and "--workers 2 on 0 GPUs" in said


def test_dataparallel_without_a_gpu_is_unsupported():
    bare = Machine(2, "Xeon", 8 << 30, (), {"torch": "2.15.0", "torchvision": "0.29.2"})
    trial = Trial(framework="torch_dp", workers=2, device="cpu", cores_per_worker=1)
    assert unsupported(trial, bare).startswith("torch's DataParallel splits a batch over GPUs")
    two = Machine(2, "Xeon", 8 << 30, ("H100", "H100"), bare.libraries)
    assert unsupported(replace(trial, device="cuda"), two) == ""
    assert "4 workers need 4 GPUs" in unsupported(replace(trial, device="cuda", workers=4), two)
    assert "compiled" in unsupported(replace(trial, device="cuda", compile=True), two)


# What DataParallel does, without CUDA: the batch in equal parts, each through the weights of one model; of BatchNorm's
# buffers the first replica's are kept. All else in the script runs as it is.
STAND_IN = """
import runpy, sys
import torch
from torch import nn
from torch.func import functional_call
script = runpy.run_path(sys.argv[1])

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
sys.argv[1:] = sys.argv[2:]
script["run"]("torch_dp", script["join"], script["build"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
def test_dataparallel_trains_what_two_workers_would(tmp_path, accumulation):
    """All but CUDA's part: the global batch, the mean over it, the rate, the report, the gate's view of one process."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    gate = gate_of(Trial(framework="torch_dp", model="resnet8", workers=2, accumulation=accumulation), tmp_path)
    assert (gate.workers, gate.processes, gate.launcher) == (2, 1, "python")
    run([sys.executable, str(tmp_path / "stand_in.py"), str(DP), *gate.to_argv(), "--record", str(tmp_path)])
    result = outcome.judge(gate, tmp_path, Exit(0, 1.0))
    assert (result.status, result.reason) == ("ok", "")
    (report,) = result.ranks
    assert (report.world_size, report.samples_per_step, report.allreduce_bytes) == (1, 16, None)
    assert report.learning_rate == pytest.approx(0.02)
    answer = judged(tmp_path)
    assert answer["verdict"] == "passed", answer
