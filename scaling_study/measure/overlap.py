"""Does communication overlap computing here? One step that is not timed, under torch's profiler.          [torch]

    collectives       |------ in flight ------|    |---|      from the call until it is complete
    computing      |--------|        |-------------|          on a CPU operators of torch, on a GPU kernels
                      both           both                     overlap: both / in flight

The backends of torch.distributed leave spans of their own. A library with collectives of its own is seen through the
functions that it names to `Wire.watch`; one that returns a handle at once also names what tells that it is complete.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from scaling_study.measure.wire import Wire

Spans = list[tuple[int, int]]  # [begin, end) in ns since 1970

BACKENDS = ("gloo:", "nccl:")  # what the names of their spans begin with
PAIRWISE = ("send", "recv")  # of a pipeline's stages: to wait for a neighbour is no collective
POLL_SECONDS = 0.0005


@dataclass(frozen=True)
class Observed:
    """What one step showed on this rank."""

    overlap: float | None  # 0 to 1; None where no collective was seen
    nccl_kernels: int | None  # None where no kernel was seen


def observe(step: Callable[[], object], wire: Wire, device: torch.device) -> Observed:
    """Run one step and look at it. Every rank calls this."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it complains of every machine without a GPU
    from torch.autograd.profiler import profile

    on_gpu = device.type == "cuda"
    flights = Flights()
    with profile(use_device="cuda" if on_gpu else None, use_kineto=True) as profiler:
        with wire.around(flights.following):
            step()
        if on_gpu:
            torch.cuda.synchronize(device)
    flights.settle()
    kernels: list[tuple[str, int, int]] = []
    operators: list[tuple[str, int, int]] = []
    for event in profiler.kineto_results.events():
        span = event.name(), event.start_ns(), event.start_ns() + event.duration_ns()
        (operators if event.device_type() == torch.autograd.DeviceType.CPU else kernels).append(span)
    nccl = [(begin, end) for name, begin, end in kernels if is_nccl(name)]
    torchs = [(begin, end) for name, begin, end in operators if is_collective(name)]
    computing = (
        [(begin, end) for name, begin, end in kernels if not is_nccl(name)]
        if on_gpu
        else [(begin, end) for name, begin, end in operators if name.startswith("aten::")]
    )
    return Observed(overlap(nccl or [*torchs, *flights.spans], computing), len(nccl) if kernels else None)


class Flights:
    """The collectives of a library of its own: when each was called, and when it was complete."""

    def __init__(self) -> None:
        self.spans: Spans = []
        self._pending: dict[tuple[int, Any], Callable[[Any], bool]] = {}  # (begin, handle) -> whether it is complete
        self._watcher: threading.Thread | None = None
        self._ended = threading.Event()

    def following(self, call: Callable[[], Any], done: Callable[[Any], bool] | None) -> Any:
        """The result of a call, whose span is noted; with `done`, until that says that its handle is complete."""
        begin = time.time_ns()
        result = call()
        if done is None:
            self.spans.append((begin, time.time_ns()))
            return result
        self._pending[begin, result] = done
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        return result

    def settle(self) -> None:
        """Wait for the last one: the step is over, so all are complete."""
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        while self._pending or not self._ended.is_set():
            for (begin, handle), done in list(self._pending.items()):
                if _complete(done, handle):
                    self.spans.append((begin, time.time_ns()))
                    del self._pending[begin, handle]
            time.sleep(POLL_SECONDS)


def _complete(done: Callable[[Any], bool], handle: Any) -> bool:
    try:
        return done(handle)
    except ValueError:  # Horovod: it was waited for, and its handle is gone
        return True


def overlap(in_flight: Iterable[tuple[int, int]], computing: Iterable[tuple[int, int]]) -> float | None:
    """The share of the time with a collective in flight in which something was computed; None without any."""
    flights, computed = union(in_flight), union(computing)
    total = sum(end - begin for begin, end in flights)
    return _in_both(flights, computed) / total if total else None


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """Disjoint spans, in order, that cover the same time."""
    joined: Spans = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def _in_both(a: Spans, b: Spans) -> int:
    """ns that two unions share."""
    shared = i = j = 0
    while i < len(a) and j < len(b):
        shared += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return shared


def is_nccl(kernel: str) -> bool:
    """`ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`."""
    return kernel.startswith("nccl")


def is_collective(operator: str) -> bool:
    """`gloo:all_reduce`; not `gloo:send`."""
    return operator.startswith(BACKENDS) and operator.partition(":")[2] not in PAIRWISE
