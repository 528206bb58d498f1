"""What this worker's device can do at most, measured: FLOP/s of a matrix product, bytes/s of a copy.       [torch]

A roof to hold training against (analysis/why/utilisation.py), not a number from a data sheet: the same cores or GPU,
the same number of threads, the same precision, while the other workers of the trial do the same. After everything else,
so nothing that is measured knows of it. The fastest call counts: a roof is what can be reached.

    matrix product   n x n in the precision of compute, 2 n^3 FLOP; n doubles while a call stays short
    copy             a buffer larger than caches, read once and written once (as STREAM's copy counts it)

On a GPU `fp32` uses TF32 where the run's own convolutions or matrix products were allowed to: torch allows it to the
former by default and not to the latter. Numbers are random: for ones a GPU draws less power and clocks higher.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch
from torch import nn

from scaling_study.workloads.workload import DTYPES

SECONDS = 0.1  # for each of the two, once its size is found
FEWEST_CALLS = 3
LONGEST_CALL = 0.03  # seconds, beyond which n is not doubled
SIDES = {"cpu": (128, 2048), "cuda": (1024, 8192)}  # the smallest and the largest n
COPY_BYTES = {"cpu": 128 << 20, "cuda": 256 << 20}
TILE = 1 << 18  # random numbers, repeated over the buffer
SHARE_OF_MEMORY = 256  # of what is available, as a divisor: two buffers on each of 64 ranks are half of it


@dataclass(frozen=True)
class Peak:
    """Of one worker's device; None where it could not be measured, such as where memory is full."""

    flops_per_second: float | None
    bytes_per_second: float | None


def may_round_to_tf32(model: nn.Module, precision: str, device: torch.device) -> bool:
    """Whether fp32 means TF32 for this model with torch's settings as they are now, in any of its layers."""
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    allowed = torch.backends.cuda.matmul.allow_tf32 or (convolves and torch.backends.cudnn.allow_tf32)
    return bool(allowed) and device.type == "cuda" and precision == "fp32"


def measure_peak(device: torch.device, precision: str, tf32: bool, seconds: float = SECONDS) -> Peak:
    """Both, in a few tenths of a second. Never raises: a trial does not fail for it."""
    with torch.no_grad():
        return Peak(
            _or_unknown(lambda: matrix_product(device, DTYPES[precision], tf32, seconds)),
            _or_unknown(lambda: copy(device, seconds)),
        )


def matrix_product(device: torch.device, dtype: torch.dtype, tf32: bool = False, seconds: float = SECONDS) -> float:
    """FLOP/s of the fastest n x n by n x n product; of fp32 on a GPU, with TF32 or without."""
    side, most = SIDES[device.type]
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        while True:
            a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
            out = torch.empty_like(a)

            def call(a: torch.Tensor = a, b: torch.Tensor = b, out: torch.Tensor = out) -> torch.Tensor:
                return torch.mm(a, b, out=out)

            if side >= most or 8 * fastest(call, device, 0.0) > LONGEST_CALL:
                return 2 * side**3 / fastest(call, device, seconds)
            side *= 2
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def copy(device: torch.device, seconds: float = SECONDS) -> float:
    """Bytes read and written a second by the fastest copy of a large buffer."""
    size = COPY_BYTES[device.type]
    if device.type == "cpu":  # where memory that is full would end the trial, not this measurement
        size = min(size, psutil.virtual_memory().available // SHARE_OF_MEMORY)
    tile = torch.randn(min(TILE, size // 4), device=device)  # drawing all of them would take longer than the copies
    source = tile.repeat(size // tile.nbytes)
    size = source.nbytes
    target = torch.zeros_like(source)  # touched, so that no call pays for the pages' first use
    return 2 * size / fastest(lambda: target.copy_(source), device, seconds)


def fastest(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Seconds of the shortest of at least FEWEST_CALLS calls, repeated for `seconds`; the first is not counted."""
    clock = _on_gpu if device.type == "cuda" else _on_cpu
    clock(call)
    best, until, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < FEWEST_CALLS or time.perf_counter() < until:
        best, calls = min(best, clock(call)), calls + 1
    return best


def _on_cpu(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _on_gpu(call: Callable[[], object], times: int = 8) -> float:
    """The mean of several in a row: the host issues the next while the device computes one."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / times


def _or_unknown(measure: Callable[[], float]) -> float | None:
    try:
        return measure()
    except (RuntimeError, KeyError):  # out of memory, or a type or a device that has no such product
        return None
