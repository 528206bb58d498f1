"""On a real GPU: what is measured there is what happens there. Skipped on a machine without one."""

from __future__ import annotations

import time

import pytest
import torch

from scaling_study.measure import surroundings
from scaling_study.measure.memory import Memory
from scaling_study.measure.surroundings import PowerMeter, gpu_uuids
from scaling_study.measure.training import Phase, now
from scaling_study.workloads.feed import sent

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
]
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
