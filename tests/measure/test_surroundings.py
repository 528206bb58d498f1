"""What surrounds the steps: allocator, other processes, power, and the most that a device reaches."""

from __future__ import annotations

import ctypes
import multiprocessing
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest
import torch
from torch import nn

from scaling_study.measure import surroundings
from scaling_study.measure.surroundings import (
    Peak,
    PowerMeter,
    QuietMeter,
    copy,
    fastest,
    gpu_uuids,
    matrix_product,
    may_round_to_tf32,
    measure_peak,
)
from scaling_study.records.store import read_ranks
from scaling_study.settings import CHECKOUT

CPU = torch.device("cpu")


MODULE = CHECKOUT / "scaling_study" / "measure" / "surroundings.py"
ARRAYS = """
import resource, runpy, sys
import numpy as np
if "fixed" in sys.argv:
    runpy.run_path(sys.argv[1])["fix_thresholds"]()
for step in range(30):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(2**20 + step) for _ in range(4)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_stays_in_the_process() -> None:
    def faults(kind: str) -> int:
        command = [sys.executable, "-c", ARRAYS, str(MODULE), kind]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    fixed, system = faults("fixed"), faults("system")
    assert fixed < 1000 and system > 10 * fixed, (fixed, system)


def test_another_c_library_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fix = runpy.run_path(str(MODULE))["fix_thresholds"]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with pytest.raises(SystemExit, match="--allocator system"):
        fix()


def busy(seconds: float, done: multiprocessing.synchronize.Event, end: multiprocessing.synchronize.Event) -> None:
    while time.process_time() < seconds:
        pass
    done.set()
    end.wait()


def busy_below(seconds: float, done: multiprocessing.synchronize.Event, end: multiprocessing.synchronize.Event) -> None:
    below = multiprocessing.get_context("fork").Process(target=busy, args=(seconds, done, end))
    below.start()
    below.join()


@pytest.mark.parametrize("who", [busy, busy_below])
def test_processes_that_it_started_are_its_own_and_those_that_they_started(who: Callable[..., None]) -> None:
    context = multiprocessing.get_context("fork")
    done, end = context.Event(), context.Event()
    meter = QuietMeter()
    meter.start()
    loader = context.Process(target=who, args=(0.2, done, end))
    loader.start()
    done.wait()
    meter.stop()
    end.set()
    loader.join()
    assert meter.own_cpu_seconds >= 0.19  # the kernel counts in hundredths


@pytest.fixture
def rapl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, int], None]:
    """rapl("intel-rapl:0", "package-0", microjoules) plants one domain of the kernel's."""
    monkeypatch.setattr(surroundings, "RAPL", tmp_path)

    def plant(folder: str, name: str, microjoules: int) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "name").write_text(f"{name}\n")
        (tmp_path / folder / "energy_uj").write_text(f"{microjoules}\n")

    return plant


def test_only_packages_count(rapl: Callable[[str, str, int], None]) -> None:
    """A client CPU has psys beside its package, which holds the package's energy too; cores lie within a package."""
    domains = [("intel-rapl:0", "package-0"), ("intel-rapl:1", "psys"), ("intel-rapl:2", "package-1-die-0"),
               ("intel-rapl:0:0", "core"), ("intel-rapl:12", "package-11"), ("intel-rapl-mmio:0", "package-0"),
               ("intel-rapl:2:0", "package-1-die-0-dram")]  # fmt: skip
    for folder, name in domains:
        rapl(folder, name, 5_000_000)
    meter = PowerMeter((), local_rank=0)
    meter.start()
    for joules, (folder, name) in enumerate(domains, start=1):
        rapl(folder, name, 5_000_000 + 10**joules * 1_000_000)
    meter.stop()
    assert meter.energy_joules == 10**1 + 10**3 + 10**5


def test_a_counter_that_wraps_leaves_energy_unknown(rapl: Callable[[str, str, int], None]) -> None:
    rapl("intel-rapl:0", "package-0", 9_000_000)
    rapl("intel-rapl:1", "package-1", 1_000_000)
    meter = PowerMeter((), local_rank=0)
    meter.start()
    rapl("intel-rapl:0", "package-0", 8_000_000)
    rapl("intel-rapl:1", "package-1", 7_000_000)
    meter.stop()
    assert meter.energy_joules is None


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """NVML's energy counters in mJ by UUID; torch sees the GPUs in the other order, as CUDA_VISIBLE_DEVICES may."""
    millijoules = {"GPU-a": 1000, "GPU-b": 50_000}
    nvml = SimpleNamespace(
        NVMLError=OSError, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: millijoules[handle],
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu={"GPU-a": 20, "GPU-b": 60}[handle]),
    )  # fmt: skip
    monkeypatch.setattr(surroundings, "pynvml", nvml)
    monkeypatch.setattr(surroundings, "SAMPLE_SECONDS", 0.001)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="ba"[index]))
    return millijoules


def test_a_gpu_is_known_by_its_uuid(gpus: dict[str, int]) -> None:
    assert [gpu_uuids([0]), gpu_uuids([1, 0]), gpu_uuids([])] == [["GPU-b"], ["GPU-a", "GPU-b"], []]


def test_all_gpus_of_a_worker_count(gpus: dict[str, int]) -> None:
    meter = PowerMeter((0, 1), local_rank=0)
    meter.start()
    while len(meter.samples) < 4:
        pass
    gpus.update({"GPU-a": 3000, "GPU-b": 150_000})
    meter.stop()
    assert (meter.energy_joules, meter.utilization_percent) == (2.0 + 100.0, 40.0)


@pytest.mark.slow
def test_it_is_the_fastest_call_that_counts() -> None:
    pauses = iter([0.001, 0.4, 0.05, *[0.4] * 1000])
    assert 0.05 <= fastest(lambda: time.sleep(next(pauses)), CPU, 0.0) < 0.4, "the first, 1 ms, is not counted"


def test_a_copy_takes_a_small_share_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "fastest", lambda call, device, seconds: 0.5)
    little = type("Memory", (), {"available": 1 << 30})
    monkeypatch.setattr(surroundings.psutil, "virtual_memory", lambda: little)
    assert copy(CPU) == 2 * (1 << 22) / 0.5, "64 ranks of a host do this at once"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_are_random_as_those_of_training_are(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """A GPU draws less power for zeros and ones, and so runs at a higher clock than it holds in training."""
    monkeypatch.setattr(surroundings, "SIDES", {"cpu": (64, 64)})
    monkeypatch.setattr(surroundings, "COPY_BYTES", {"cpu": 8 << 20})
    seen: list[torch.Tensor] = []

    def called(call: Callable[[], object], device: torch.device, seconds: float) -> float:
        seen.append(call())
        return 0.5

    monkeypatch.setattr(surroundings, "fastest", called)
    assert matrix_product(CPU, dtype) == 2 * 64**3 / 0.5
    assert copy(CPU) == 2 * (8 << 20) / 0.5, "read and written"
    product, copied = seen
    assert product.dtype == dtype and len(product.unique()) > product.numel() / 10
    assert copied.nbytes == 8 << 20 and len(copied.unique()) > 1000


@pytest.fixture
def torch_allows_tf32() -> Iterator[Callable[[bool, bool], None]]:
    """torch_allows_tf32(in convolutions, in matrix products); as before once the test is over."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32

    def set_both(convolutions: bool, products: bool) -> None:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products

    yield set_both
    set_both(*before)


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("model", "precision", "convolutions", "products", "rounded"),
    [
        (convolutional(), "fp32", True, False, True),
        (convolutional(), "fp32", False, False, False),
        (nn.Linear(4, 4), "fp32", True, False, False),
        (nn.Linear(4, 4), "fp32", True, True, True),
        (convolutional(), "bf16", True, True, False),
    ],
)
def test_fp32_is_tf32_where_the_model_computed_in_it(
    torch_allows_tf32: Callable[[bool, bool], None],
    model: nn.Module, precision: str, convolutions: bool, products: bool, rounded: bool,
) -> None:  # fmt: skip
    torch_allows_tf32(convolutions, products)
    assert may_round_to_tf32(model, precision, torch.device("cuda", 0)) == rounded
    assert not may_round_to_tf32(model, precision, CPU)


def test_a_full_memory_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "randn", full)
    assert measure_peak(CPU, "fp32", False) == Peak(None, None)


@pytest.mark.slow
def test_a_trial_keeps_what_its_device_reached(tmp_path: Path) -> None:
    """By the product itself: in the report of every rank, and so in the record."""
    flags = ["--model", "resnet8", "--batch-per-worker", "8", "--data", "synthetic", "--steps", "4",
             "--cores-per-worker", "1"]  # fmt: skip
    program = [sys.executable, str(CHECKOUT / "data_parallel/single.py"), *flags, "--record", str(tmp_path)]
    done = forked.run(program)
    assert done.returncode == 0, done.stderr
    (report,) = read_ranks(tmp_path, 1)
    assert report.peak_flops_per_second is not None and report.peak_flops_per_second > 1e8
    assert report.peak_bytes_per_second is not None and report.peak_bytes_per_second > 1e8
    assert report.forward_flops_per_sample == 25_003_264
