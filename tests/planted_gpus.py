"""A stand-in for NVML (nvidia-ml-py): any number of GPUs, whole or divided into parts, and what others run on them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

GIB = 1 << 30
VERSION_2 = 2


class NVMLError(Exception):
    pass


@dataclass(eq=False)
class Gpu:
    """A GPU, or a part of one. `looks`: bytes in use at each look at its memory, the last one for ever."""

    name: str = "H100"
    uuid: str = ""
    looks: list[int] = field(default_factory=lambda: [0])
    total: int = 80 * GIB
    reserved: int = 0  # by the driver, which only the first version of the call counts as used
    has_version_2: bool = True
    pids: Sequence[int] = ()
    busy: float | None = 0.0  # percent; None: NVML does not say, as of a part
    parts: Sequence[Gpu | None] = ()  # None: a place without one
    divided: bool | None = False  # None: it cannot be
    capability: tuple[int, int] | None = (9, 0)


def plant(
    monkeypatch: pytest.MonkeyPatch, gpus: Sequence[Gpu], visible: str | None = None, driver: bool = True
) -> None:
    """Have these GPUs be seen in place of the machine's own. `driver`: one is loaded."""

    def asked(value: Any) -> Any:
        if value is None:
            raise NVMLError("not supported")
        return value

    def by_uuid(uuid: str) -> Gpu:
        every = [*gpus, *(part for gpu in gpus for part in gpu.parts)]
        return asked(next((gpu for gpu in every if gpu and gpu.uuid == uuid), None))

    def memory(gpu: Gpu, version: int | None = None) -> SimpleNamespace:
        asked(gpu.has_version_2 or not version or None)
        used = gpu.looks.pop(0) if len(gpu.looks) > 1 else gpu.looks[0]
        return SimpleNamespace(used=used + (0 if version else gpu.reserved), total=gpu.total)

    for number, gpu in enumerate(gpus):
        gpu.uuid = gpu.uuid or f"GPU-{number}e2f-11"
    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlMemory_v2=VERSION_2,
        nvmlInit=lambda: asked(driver or None),
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda index: gpus[index],
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetName=lambda gpu: gpu.name,
        nvmlDeviceGetUUID=lambda gpu: gpu.uuid,
        nvmlDeviceGetMigMode=lambda gpu: (asked(gpu.divided), 0),
        nvmlDeviceGetMaxMigDeviceCount=lambda gpu: len(gpu.parts),
        nvmlDeviceGetMigDeviceHandleByIndex=lambda gpu, place: asked(gpu.parts[place]),
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetCudaComputeCapability=lambda gpu: asked(gpu.capability),
        nvmlDeviceGetComputeRunningProcesses=lambda gpu: [SimpleNamespace(pid=pid) for pid in gpu.pids],
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=asked(gpu.busy)),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
