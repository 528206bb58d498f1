"""Surroundings of the timed steps: allocator, garbage collector, other processes, power, peaks, versions.  [torch]

python -m scaling_study.measure.surroundings      versions as JSON (--print-environment)
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pynvml
import torch
from torch import nn

from scaling_study.control_groups import throttled_seconds
from scaling_study.machine import DALI, boot_id, cpu_model, installed
from scaling_study.measure.training import Loss, Step, Stopwatch, Training
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.workload import DTYPES, Batch

NEVER, TOP_PAD_BYTES = -1, 256 << 20  # bytes to free before memory goes back; to take from the kernel at once
MALLOPT = (("M_MMAP_MAX", -4, 0), ("M_TRIM_THRESHOLD", -1, NEVER), ("M_TOP_PAD", -2, TOP_PAD_BYTES))  # of malloc.h


def fix_thresholds() -> None:
    """Fix the thresholds of glibc's allocator for the rest of this process (`allocator: fixed`).

    By default glibc returns a large tensor to the kernel as soon as it is freed, and the next step faults its pages in
    again, from a size on that moves with what was freed before: a configuration's speed depends on its history. Here
    freed memory stays in the process (mallopt(3)). Raises SystemExit where the C library is another than glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        raise SystemExit("--allocator fixed needs glibc's mallopt, which is not here: --allocator system") from None
    for name, option, value in MALLOPT:
        if not mallopt(option, value):
            raise SystemExit(f"--allocator fixed: glibc refused mallopt({name}, {value}): --allocator system")


def settle() -> None:
    """Collect garbage once, and set apart what is alive.

    A full collection walks the hundreds of thousands of objects that torch and a model leave: some tenths of a second,
    at another step on every rank, and all ranks wait for each. What the steps themselves make is collected as ever.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def settled() -> Iterator[None]:
    """The timed window runs in here."""
    settle()
    try:
        yield
    finally:
        gc.unfreeze()


IDLE = ("idle", "iowait", "guest", "guest_nice")  # guests are counted in user time already


class QuietMeter:
    """CPU time of this process and of the whole host from each `start()` to its `stop()`, added up.

    What the host was busy with, less what the ranks themselves used, is that of other processes (the hypervisor's steal
    included), which no statistics on step seconds can tell. A loader's processes are the rank's own, and so are those
    that they start in turn.
    """

    def __init__(self) -> None:
        self.own_cpu_seconds = 0.0  # of this process, all its threads, and all processes below it that are alive
        self.host_cpu_seconds = 0.0  # of every core of the host
        self.throttled_seconds = None if throttled_seconds() is None else 0.0  # that a CPU quota stopped processes for
        self._before = (0.0, 0.0, 0.0)

    def start(self) -> None:
        self._before = self._seconds()

    def stop(self) -> None:
        own, host, throttled = (now - before for now, before in zip(self._seconds(), self._before, strict=True))
        self.own_cpu_seconds += own
        self.host_cpu_seconds += host
        if self.throttled_seconds is not None:
            self.throttled_seconds += throttled

    def _seconds(self) -> tuple[float, float, float]:
        """CPU time of this process and those below it, of all cores, and time stopped by a quota, since each began."""
        own = time.process_time()
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                own += sum(child.cpu_times()[:2])
        times = psutil.cpu_times()._asdict()
        host = float(sum(value for name, value in times.items() if name not in IDLE))
        return own, host, throttled_seconds() or 0.0


LIBRARIES = (
    "torch",
    "torchvision",
    "horovod",
    "mpi4py",
    "fairscale",
    "deepspeed",
    "lightning",
    "transformers",
    "numpy",
    "scaling_study",
    *DALI,
)


def versions() -> dict[str, str]:
    """Name -> version of the interpreter, of installed libraries, and of what lies under a GPU: `cuda`, `cudnn` and
    `nccl` as torch was built with them, `nvidia_driver`."""
    found: dict[str, Any] = {"python": platform.python_version()} | {name: installed(name) for name in LIBRARIES}
    if torch.cuda.is_available():
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        if torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            found["nvidia_driver"] = pynvml.nvmlSystemGetDriverVersion()
    return {name: str(version) for name, version in found.items() if version}


RAPL = Path("/sys/class/powercap")
PACKAGE = "package"  # how RAPL's name of one begins; psys has the packages' energy in it, core and dram are parts
SAMPLE_SECONDS = 0.25


class PowerMeter:
    """GPU utilisation and energy from each `start()` to its `stop()`, added up, where they can be read.

    NVML gives a GPU's utilisation (sampled) and its energy counter; RAPL gives the energy of whole CPU packages, which
    is this trial's only because the driver runs one trial at a time. `gpus`: this worker's devices, none for a CPU
    worker.
    """

    def __init__(self, gpus: Sequence[int], local_rank: int) -> None:
        self.gpus, self.local_rank = gpus, local_rank
        self.utilization_percent: float | None = None
        self.energy_joules: float | None = None
        self.samples: list[float] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: list[float] = []

    def start(self) -> None:
        self._before = self._joules()
        if self.gpus:
            self._stop.clear()
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        used = [after - before for before, after in zip(self._before, self._joules(), strict=False)]
        if used and min(used) >= 0:  # counters wrap
            self.energy_joules = (self.energy_joules or 0.0) + sum(used)
        if self._thread:
            self._stop.set()
            self._thread.join()
        if self.samples:
            self.utilization_percent = sum(self.samples) / len(self.samples)

    def _joules(self) -> list[float]:
        """The counter of each of this worker's GPUs, or of each CPU package for the first worker of a host.

        Nothing where one of them cannot be read: without permission, or on a device that has no counter.
        """
        try:
            if self.gpus:
                return [float(pynvml.nvmlDeviceGetTotalEnergyConsumption(h)) / 1e3 for h in self._handles()]
            domains = [path.parent for path in sorted(RAPL.glob("intel-rapl:*/name")) if self.local_rank == 0]
            packages = [
                domain
                for domain in domains
                if domain.name.count(":") == 1 and (domain / "name").read_text().startswith(PACKAGE)
            ]
            return [int((package / "energy_uj").read_text()) / 1e6 for package in packages]
        except (pynvml.NVMLError, OSError):
            return []

    def _sample(self) -> None:
        try:
            handles = self._handles()
            while not self._stop.wait(SAMPLE_SECONDS):
                self.samples += [float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles]
        except pynvml.NVMLError:
            return  # utilisation stays unknown

    def _handles(self) -> list[object]:
        """NVML's handles by UUID: CUDA's numbering follows CUDA_VISIBLE_DEVICES, NVML's does not."""
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in gpu_uuids(self.gpus)]


def gpu_uuids(indices: Sequence[int]) -> list[str]:
    """NVML's names of torch's devices, sorted: the same device of a host has one, whatever index a rank sees it at.

    Empty where torch does not know one of them.
    """
    uuids = [getattr(torch.cuda.get_device_properties(index), "uuid", None) for index in indices]
    return [] if None in uuids else sorted(f"GPU-{uuid}" for uuid in uuids)


SECONDS = 0.1  # for each of the two, once its size is found
FEWEST_CALLS = 3
LONGEST_CALL = 0.03  # seconds, beyond which n is not doubled
SIDES = {"cpu": (128, 2048), "cuda": (1024, 8192)}  # the smallest and the largest n
COPY_BYTES = {"cpu": 128 << 20, "cuda": 256 << 20}
TILE = 1 << 18  # random numbers, repeated over the buffer
UNKNOWN = (RuntimeError, KeyError)  # out of memory, or a type or a device that has no such product
SHARE_OF_MEMORY = 256  # of what is available, as a divisor: two buffers on each of 64 ranks are half of it


@dataclass(frozen=True)
class Peak:
    """The most that one worker's device reaches, measured; None where it could not be, such as where memory is full.

    A roof to hold training against (analysis/views/roofline.py): the same cores or GPU, threads and precision, while
    the other workers of the trial do the same, after everything else. The fastest call counts.

        matrix product   n x n in the precision of compute, 2 n^3 FLOP; n doubles while a call stays short
        copy             a buffer larger than caches, read once and written once (as STREAM's copy counts it)

    On a GPU `fp32` uses TF32 where the run's own convolutions or matrix products were allowed to. Numbers are random:
    for ones a GPU draws less power and clocks higher.
    """

    flops_per_second: float | None
    bytes_per_second: float | None


def may_round_to_tf32(model: nn.Module, precision: str, device: torch.device) -> bool:
    """True where fp32 means TF32 in any layer of this model, with torch's settings as they are now."""
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    allowed = torch.backends.cuda.matmul.allow_tf32 or (convolves and torch.backends.cudnn.allow_tf32)
    return bool(allowed) and device.type == "cuda" and precision == "fp32"


def measure_peak(device: torch.device, precision: str, tf32: bool, seconds: float = SECONDS) -> Peak:
    """Both, in a few tenths of a second. Never raises: a trial does not fail for it."""
    flops = moved = None
    with torch.no_grad():
        with contextlib.suppress(*UNKNOWN):
            flops = matrix_product(device, DTYPES[precision], tf32, seconds)
        with contextlib.suppress(*UNKNOWN):
            moved = copy(device, seconds)
    return Peak(flops, moved)


def matrix_product(device: torch.device, dtype: torch.dtype, tf32: bool = False, seconds: float = SECONDS) -> float:
    """FLOP/s of the fastest n x n by n x n product; of fp32 on a GPU, with TF32 or without."""
    side, most = SIDES[device.type]
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        while True:
            a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
            call = partial(torch.mm, a, b, out=torch.empty_like(a))
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
    in_a_row = 8 if device.type == "cuda" else 1  # the host issues the next while a GPU computes one
    watch, took = Stopwatch(device), list[float]()
    call()
    until = time.perf_counter() + seconds
    while len(took) < FEWEST_CALLS or time.perf_counter() < until:
        watch.start()
        for _ in range(in_a_row):
            call()
        watch.lap()
        took.append(sum(watch.seconds()) / in_a_row)
    return min(took)


class SkippedSteps:
    """`count` of the steps made through `counting` in which the optimiser took none; None where nothing scales.

    A scaler of fp16 losses (torch's, FairScale's, DeepSpeed's, Lightning's) begins with a scale that is too large, and
    lowers it each time that it finds a gradient that is not finite, without calling the optimiser. Otherwise all of
    them call the same method of it, so steps are seen there: on the host, with no wait for the device.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, trial: Trial) -> None:
        self.count: int | None = 0 if trial.precision == "fp16" else None
        self._taken = False
        if self.count is not None:
            optimizer.register_step_post_hook(lambda *_: setattr(self, "_taken", True))

    def counting(self, step: Step) -> Step:
        """The step, after which it is known whether the optimiser was called in it."""
        if self.count is None:
            return step

        def counted(batch: Batch) -> Loss:
            self._taken = False
            loss = step(batch)
            self.count = (self.count or 0) + (not self._taken)
            return loss

        return counted


def described(training: Training, trial: Trial, ranks: Ranks) -> dict[str, Any]:
    """The fields of a RankReport that no measuring is needed for."""
    workload = training.workload
    return {
        **about_process(with_backend(ranks, training)),
        "boot_id": boot_id(),
        "gpu_uuids": gpu_uuids([device.index for device in ranks.devices if device.type == "cuda"]),
        "samples_per_step": workload.samples_per_step,
        "parameters": workload.parameters,
        "parameters_all": workload.parameters_all,
        "data_source": workload.data_source,
        "steps_per_epoch": workload.steps_per_epoch,
        "forward_flops_per_sample": workload.forward_flops_per_sample,
        "learning_rate": training.optimizer.param_groups[0]["lr"],
        "stages": list(training.stages),
        "weights": dict(workload.weights),
    }


def with_backend(ranks: Ranks, training: Training) -> Ranks:
    """The ranks, with what the framework reports once the model is wrapped."""
    return replace(ranks, backend={**ranks.backend, **training.backend})


def about_process(ranks: Ranks) -> dict[str, Any]:
    """The fields of a RankReport on this process and its device, whatever it does."""
    device = ranks.device
    return {
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "local_rank": ranks.local_rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(),
        "cores": list(ranks.cores),
        "threads": torch.get_num_threads(),
        "backend": dict(ranks.backend),
        "versions": versions(),
    }


if __name__ == "__main__":
    print(json.dumps(versions()))
