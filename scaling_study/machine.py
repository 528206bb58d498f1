"""This machine: the cores, GPUs and libraries that decide which trials can run here.

The plan only ever sees the `Machine` value, so planning stays pure: a test, or a laptop planning for a
cluster, passes in another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from scaling_study import control_groups
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.models import MODELS
from scaling_study.targets import LOGS

ANSWER_SECONDS = 10.0  # of Slurm, to a question about a job
DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda120")  # distributions of one library; the first is the extra's


@dataclass(frozen=True)
class Machine:
    """One machine, as far as a plan depends on it."""

    cores: int  # that this process may use (affinity and container quota)
    cpu: str
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)  # distribution -> version, installed ones only
    limited_by: str = ""  # that leaves fewer cores than the machine has, in words

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
        keys = asdict(self)
        del keys["limited_by"]
        return {**keys, "gpus": list(self.gpus), "fingerprint": self.fingerprint}

    def __str__(self) -> str:
        gpus = f", {len(self.gpus)} x {self.gpus[0]}" if self.gpus else ", no GPU"
        return f"{self.cores} cores of {self.cpu}, {self.memory_bytes / 2**30:.0f} GiB{gpus}"


def this_machine() -> Machine:
    """Look at the machine this runs on; no torch needed, a few milliseconds."""
    needed = {*(n for f in FRAMEWORKS.values() for n in f.needs), *(n for m in MODELS.values() for n in m.needs)}
    needed |= {name for table in FRAMEWORKS.values() for some in table.launcher_needs.values() for name in some}
    needed |= {"torchmetrics", *LOGS, *DALI, *(model.imagenet for model in MODELS.values() if model.imagenet)}
    limits = core_limits()
    least = min(limits, key=lambda limit: limits[limit])
    return Machine(
        cores=limits[least],
        cpu=cpu_model(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(visible_gpus().values()),
        libraries={name: version for name in sorted(needed) if (version := installed(name))},
        limited_by=least if limits[least] < (os.cpu_count() or 1) else "",
    )


def usable_cores() -> int:
    """Cores that this process may use: the least of what limits them."""
    return min(core_limits().values())


def core_limits() -> dict[str, int]:
    """Each limit on the cores of this process, in words, and the number that it leaves: at least its affinity."""
    limits = {"its affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1}
    if quota := quota_cores():
        limits[f"a CPU quota of {control_groups.cpu_quota():g} cores"] = quota
    given = os.environ.get("SLURM_CPUS_ON_NODE", "")  # not every Slurm binds a job to its cores
    if given.isdecimal() and int(given) and started_by_slurm():
        limits[f"SLURM_CPUS_ON_NODE={given}"] = int(given)
    return limits


def started_by_slurm() -> bool:
    """True for a process of a Slurm job on this host. Variables alone may be of another host, or of a job long over."""
    with contextlib.suppress(psutil.Error):
        return any(process.name() == "slurmstepd" for process in psutil.Process().parents())
    return False


@cache
def job_runs(job: str) -> bool:
    """True for a Slurm job that is under way: it has started this process, or Slurm says so (salloc starts a shell)."""
    if started_by_slurm():
        return True
    command = ["squeue", "--noheader", "--format=%T", f"--jobs={job}"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.stdout.strip() == "RUNNING"


def quota_cores() -> int | None:
    """Whole cores' worth of CPU time that this process's control groups leave it, at least one; None: no limit."""
    quota = control_groups.cpu_quota()
    return None if math.isinf(quota) else max(1, int(quota))


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


def gpu_memory_bytes() -> int | None:
    """Of the visible NVIDIA GPU that has least; None where there is none."""
    names = visible_gpus()
    if not names:
        return None
    import pynvml

    handles = map(pynvml.nvmlDeviceGetHandleByUUID, names)
    return min(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles)


def installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
