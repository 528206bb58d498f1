"""GPU utilisation and energy over the timed window, where they can be read; unknown elsewhere.           [torch]

NVML gives a GPU's utilisation (sampled) and its energy counter; RAPL gives the energy of whole CPU packages,
which is this trial's only because the driver runs one trial at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pynvml
import torch

RAPL = Path("/sys/class/powercap")
PACKAGE = "package"  # how RAPL's name of one begins; psys has the packages' energy in it, core and dram are parts
SAMPLE_SECONDS = 0.25


class PowerMeter:
    """Reads from each `start()` to its `stop()`, added up. `gpus`: this worker's devices, none for a CPU worker."""

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
        """Of each of this worker's GPUs; of each CPU package for the first worker of a CPU host, so none counts twice.

        Nothing where one of them cannot be read: without permission, or on a device that has no counter.
        """
        try:
            if self.gpus:
                return [float(pynvml.nvmlDeviceGetTotalEnergyConsumption(h)) / 1e3 for h in self._handles()]
            return [int(counter.read_text()) / 1e6 for counter in _packages()] if self.local_rank == 0 else []
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
        """By UUID: CUDA's numbering follows CUDA_VISIBLE_DEVICES, NVML's does not."""
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in gpu_uuids(self.gpus)]


def gpu_uuids(indices: Sequence[int]) -> list[str]:
    """NVML's names of torch's devices, sorted: the same device of a host has one, whatever index a rank sees it at.

    Empty where torch does not know one of them.
    """
    uuids = [getattr(torch.cuda.get_device_properties(index), "uuid", None) for index in indices]
    return [] if None in uuids else sorted(f"GPU-{uuid}" for uuid in uuids)


def _packages() -> list[Path]:
    """The energy counters of the host's CPU packages, in microjoules."""
    domains = [path.parent for path in sorted(RAPL.glob("intel-rapl:*/name")) if ":" not in path.parent.name[11:]]
    return [domain / "energy_uj" for domain in domains if (domain / "name").read_text().startswith(PACKAGE)]
