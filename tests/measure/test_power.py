"""Energy and utilisation: of this worker's GPUs by their UUIDs, of CPU packages each once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scaling_study.measure import surroundings
from scaling_study.measure.surroundings import PowerMeter, gpu_uuids


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


def test_one_gpu_whose_counter_is_missing_leaves_the_sum_unknown(gpus: dict[str, int]) -> None:
    def of_one(handle: str) -> int:
        if handle == "GPU-b":
            raise OSError("Not Supported")
        return 1000

    surroundings.pynvml.nvmlDeviceGetTotalEnergyConsumption = of_one
    meter = PowerMeter((0, 1), local_rank=0)
    meter.start()
    meter.stop()
    assert meter.energy_joules is None
