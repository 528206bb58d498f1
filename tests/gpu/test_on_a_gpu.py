"""On a real GPU: what is measured there is what happens there. Skipped on a machine without one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from scaling_study.machine import gpu_use
from scaling_study.measure import Wire, surroundings
from scaling_study.measure.memory import Memory
from scaling_study.measure.surroundings import PowerMeter, gpu_uuids
from scaling_study.measure.training import Phase, now
from scaling_study.ranks import Ranks
from scaling_study.records import store
from scaling_study.records.schema import GpuUse
from scaling_study.settings import CHECKOUT
from scaling_study.study import groups
from scaling_study.trial import Trial
from scaling_study.workloads import load
from scaling_study.workloads.feed import sent

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")]
GPU = torch.device("cuda", 0)
GIB = 1 << 30


def busy(seconds: float) -> None:
    """Let the device compute for about so long."""
    matrix = torch.randn(4096, 4096, device=GPU)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for _ in range(10):
            matrix @ matrix
        torch.cuda.synchronize()


def test_a_batch_is_sent_while_the_device_computes() -> None:
    batch, matrix = torch.randn(256, 3, 224, 224), torch.randn(8192, 8192, device=GPU)
    sent(batch, GPU)  # pinned memory is allocated once
    now(GPU)
    for _ in range(20):
        matrix @ matrix
    began = time.perf_counter()
    arrived = sent(batch, GPU)
    host_seconds = time.perf_counter() - began
    queued_seconds = now(GPU) - began
    assert arrived.cpu().equal(batch)
    assert host_seconds < 0.8 * queued_seconds, (host_seconds, queued_seconds)


def test_the_peak_of_the_window_is_without_what_was_freed_before_it() -> None:
    memory = Memory(torch.nn.Linear(8, 8).to(GPU), None, GPU)
    large = torch.empty(GIB, dtype=torch.uint8, device=GPU)
    del large
    memory.start()
    small = torch.empty(GIB // 8, dtype=torch.uint8, device=GPU)
    memory.stop()
    assert (memory.setup_peak_bytes or 0) >= GIB
    assert small.nbytes <= memory.peak_bytes() < GIB // 2


def test_energy_is_that_of_this_device_by_its_uuid() -> None:
    (uuid,) = gpu_uuids([0])
    assert uuid.startswith("GPU-")
    meter = PowerMeter([0], local_rank=0)
    meter.start()
    began = time.perf_counter()
    busy(2.0)
    meter.stop()
    watts = (meter.energy_joules or 0.0) / (time.perf_counter() - began)
    assert 10 < watts < 2000, watts
    assert meter.utilization_percent and meter.utilization_percent > 20


def test_peaks_are_those_of_their_precision() -> None:
    fp32, tf32, fp16 = (
        surroundings.matrix_product(GPU, dtype, tf32)
        for dtype, tf32 in ((torch.float32, False), (torch.float32, True), (torch.float16, False))
    )
    assert fp16 > 1.5 * fp32
    if torch.cuda.get_device_capability(GPU) >= (8, 0):
        assert tf32 > 1.5 * fp32
    assert 1e10 < surroundings.copy(GPU) < 2e13


def test_phases_add_up_to_the_wall_clock_and_events_agree() -> None:
    matrix, phase = torch.randn(8192, 8192, device=GPU), Phase(GPU)
    phase.on = True
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    matrix @ matrix
    began = now(GPU)
    start.record()
    with phase("forward"):
        for _ in range(10):
            matrix @ matrix
    end.record()
    wall_seconds = now(GPU) - began
    assert phase.seconds["forward"] == pytest.approx(wall_seconds, rel=0.05)
    assert start.elapsed_time(end) / 1e3 == pytest.approx(wall_seconds, rel=0.05)


def test_nvml_sees_the_gpus_that_torch_sees_and_what_is_used_of_them() -> None:
    held = torch.ones(GIB, dtype=torch.uint8, device=GPU)
    busy(1.5)
    uses = [GpuUse(**use) for use in gpu_use()]
    assert len(uses) == torch.cuda.device_count()
    if not uses[0].uuid.startswith("MIG-"):
        assert [uses[0].uuid] == gpu_uuids([0])
        assert (uses[0].utilization_percent or 0) > 20
    free, total = torch.cuda.mem_get_info(GPU)
    assert uses[0].used_bytes > held.nbytes and uses[0].total_bytes == pytest.approx(total, rel=0.05)
    assert uses[0].used_bytes <= total - free, "of all programs, without the driver's own"


TURNS = """study: turns
parity: false
measure: {warm: true, interleave_gpus: true, rounds: 3, block_seconds: 0.3, min_steps: 3, min_seconds: 0, repeats: 2}
sweeps:
  - {framework: single, data: synthetic, model: resnet18}
  - {framework: torch_ddp, data: synthetic, model: resnet18, workers: 2}
  - {framework: torch_fsdp2, data: synthetic, model: resnet18, workers: 2}
  - {framework: horovod, data: synthetic, model: resnet18, workers: 2}
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has no two GPUs")
def test_groups_on_two_gpus_take_turns(tmp_path: Path) -> None:
    """Where this has passed, and its records were looked at, rounds over several GPUs are no longer untested."""
    (tmp_path / "turns.yaml").write_text(TURNS)
    sweep = [sys.executable, str(CHECKOUT / "run_sweep.py"), "turns.yaml", "--no-report"]
    done = subprocess.run(sweep, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    records = [each for each in store.read_study(tmp_path / "results" / "turns") if each.status != "unsupported"]
    assert len(records) >= 6 and {each.status for each in records} == {"ok"}, done.stdout + done.stderr
    for each in records:
        assert each.launch and each.gpus_before and (groups.UNTESTED in each.notes) == (each.trial.workers > 1)
        assert len({uuid for rank in each.ranks for uuid in rank.gpu_uuids}) == each.trial.workers


def test_bytes_of_operators_are_those_that_pass_memory() -> None:
    wire, large = Wire(), torch.ones(GIB // 4, device=GPU)
    large.clone()  # memory is allocated once
    began = now(GPU)
    with wire:
        for _ in range(20):
            large.clone()
    seconds = now(GPU) - began
    assert wire.moved_bytes == 20 * 2 * large.nbytes
    assert 0.5 < wire.moved_bytes / seconds / surroundings.copy(GPU) < 1.1


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_keys_of_gpt2_save_memory_and_keep_the_loss(precision: str) -> None:
    """First step of two layers on 8,192 tokens: 1.6 GB of scores in fp32."""
    pytest.importorskip("transformers")
    keys = {"data": "synthetic", "batch_per_worker": 128, "dropout": 0.0, "precision": precision, "device": "cuda"}
    losses, peaks = {}, {}
    for name, more in {
        "whole": {},
        "padded": {"vocabulary": 50_304, "gelu": "tanh", "optimizer_kernels": "fused", "resident_batches": 2},
        "chunked": {"vocabulary": 50_304, "cross_entropy": "chunked"},
        "compiled": {"vocabulary": 50_304, "compile": True, "compile_scope": "model_and_loss"},
    }.items():
        workload = load(Trial(model="gpt2_tiny", **keys, **more), Ranks(device=GPU))
        optimizer, batch = workload.optimizer(workload.model.parameters()), next(workload.batches)
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats(GPU)
            loss = workload.loss(workload.model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.setdefault(name, []).append(loss.item())
        peaks[name] = torch.cuda.max_memory_allocated(GPU)
        del workload, optimizer, batch, loss
    scores = 128 * 64 * 50_257 * 4
    tolerance = 5e-3 if precision == "bf16" else 1e-4
    for name in losses:
        assert losses[name] == pytest.approx(losses["whole"], rel=tolerance), name
    assert peaks["chunked"] < peaks["whole"] - scores, peaks
    assert peaks["compiled"] < peaks["whole"], peaks
