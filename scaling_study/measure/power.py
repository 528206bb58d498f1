"""GPU utilisation and energy over the timed window, where they can be read; unknown elsewhere.           [torch]

NVML gives a GPU's utilisation (sampled) and its energy counter; RAPL gives the energy of whole CPU packages,
which is this trial's only because the driver runs one trial at a time.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pynvml

RAPL = Path("/sys/class/powercap")
SAMPLE_SECONDS = 0.25


class PowerMeter:
    """Reads from `start()` to `stop()`. `gpu` is the device index, None for a CPU worker."""

    def __init__(self, gpu: int | None, local_rank: int) -> None:
        self.gpu, self.local_rank = gpu, local_rank
        self.utilization_percent: float | None = None
        self.energy_joules: float | None = None
        self._samples: list[float] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: float | None = None

    def start(self) -> None:
        self._before = self._joules()
        if self.gpu is not None:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        after = self._joules()
        if self._before is not None and after is not None and after >= self._before:  # counters wrap
            self.energy_joules = after - self._before
        if self._thread:
            self._stop.set()
            self._thread.join()
        if self._samples:
            self.utilization_percent = sum(self._samples) / len(self._samples)

    def _joules(self) -> float | None:
        """Of this worker's GPU; of all CPU packages for the first worker of a CPU host, so none counts twice."""
        try:
            if self.gpu is not None:
                return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle())) / 1e3
            counters = list(RAPL.glob("intel-rapl:?/energy_uj")) if self.local_rank == 0 else []
            return sum(int(path.read_text()) for path in counters) / 1e6 if counters else None
        except (pynvml.NVMLError, OSError):  # no permission, or a device without the counter
            return None

    def _sample(self) -> None:
        try:
            handle = self._handle()
            while not self._stop.wait(SAMPLE_SECONDS):
                self._samples.append(float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        except pynvml.NVMLError:
            return  # utilisation stays unknown

    def _handle(self) -> object:
        """By UUID: CUDA's numbering follows CUDA_VISIBLE_DEVICES, NVML's does not."""
        import torch

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(self.gpu).uuid}")
