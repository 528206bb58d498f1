"""This machine: the cores, GPUs and libraries that decide which trials can run here.

The plan only ever sees the `Machine` value, so planning stays pure: a test, or a laptop planning for a
cluster, passes in another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.models import MODELS
from scaling_study.targets import LOGS

DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda120")  # distributions of one library; the first is the extra's


@dataclass(frozen=True)
class Machine:
    """One machine, as far as a plan depends on it."""

    cores: int  # that this process may use (affinity and container quota)
    cpu: str
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)  # distribution -> version, installed ones only

    @cached_property
    def fingerprint(self) -> str:
        """Names the hardware, so that a resume on unlike hardware is noticed. Versions are in every record."""
        gib = round(self.memory_bytes / 2**30)
        return hashlib.sha256(json.dumps([self.cores, self.cpu, gib, self.gpus]).encode()).hexdigest()[:8]

    @property
    def device(self) -> str:
        """The device that `device: auto` means here."""
        return "cuda" if self.gpus else "cpu"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "gpus": list(self.gpus), "fingerprint": self.fingerprint}

    def __str__(self) -> str:
        gpus = f", {len(self.gpus)} x {self.gpus[0]}" if self.gpus else ", no GPU"
        return f"{self.cores} cores of {self.cpu}, {self.memory_bytes / 2**30:.0f} GiB{gpus}"


def this_machine() -> Machine:
    """Look at the machine this runs on; no torch needed, a few milliseconds."""
    needed = {*(n for f in FRAMEWORKS.values() for n in f.needs), *(n for m in MODELS.values() for n in m.needs)}
    needed |= {name for table in FRAMEWORKS.values() for some in table.launcher_needs.values() for name in some}
    needed |= {"torchmetrics", *LOGS, *DALI, *(model.imagenet for model in MODELS.values() if model.imagenet)}
    return Machine(
        cores=usable_cores(),
        cpu=cpu_model(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(visible_gpus().values()),
        libraries={name: version for name in sorted(needed) if (version := installed(name))},
    )


def usable_cores() -> int:
    """Cores this process may run on, or its container's CPU quota or its Slurm job's share if that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("SLURM_CPUS_ON_NODE", "")  # not every Slurm binds a job to its cores
    return min(cores, quota_cores() or cores, int(given) if given.isdecimal() and int(given) else cores)


def quota_cores() -> int | None:
    """Whole cores' worth of time that the container may use; None: no limit, or none that we can read."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no cgroup v2 here
        return None


def boot_id() -> str:
    """The id of this machine's boot; empty where its kernel has none (Linux alone has)."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def cpu_model() -> str:
    with contextlib.suppress(OSError):  # not Linux: the platform's own word has to do
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def visible_gpus() -> dict[str, str]:
    """UUID -> name of each visible NVIDIA GPU; honours CUDA_VISIBLE_DEVICES as CUDA itself does."""
    try:
        import pynvml
    except ImportError:  # it comes with what trains; a laptop that only plans has neither
        return {}
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = {pynvml.nvmlDeviceGetUUID(handle): pynvml.nvmlDeviceGetName(handle) for handle in handles}
    except pynvml.NVMLError:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return names
    visible_names: dict[str, str] = {}
    for word in map(str.strip, visible.split(",")):  # an index, or the beginning of a UUID
        meant = [u for i, u in enumerate(names) if word == str(i) or (word.startswith("GPU-") and u.startswith(word))]
        if len(meant) != 1:
            break  # CUDA ignores all that follows a device that is not there
        visible_names[meant[0]] = names[meant[0]]
    return visible_names


def installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
