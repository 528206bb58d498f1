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
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from importlib import metadata
from importlib.util import find_spec
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
    gpu_capability: float = 0.0  # the least compute capability of its GPUs, as the driver says; 0: not known
    cannot_compile: Mapping[str, str] = field(default_factory=dict)  # device -> what torch.compile lacks; none: nothing
    gpu_memory_bytes: int = 0  # of the GPU that has least; 0: not known
    gpu_tflops: float = 0.0  # dense peak of one GPU in bf16, as a machine file says; 0: not known

    @cached_property
    def capability(self) -> float:
        """The least compute capability of its GPUs, as the driver says or by their names; 0: not known."""
        return self.gpu_capability or min(map(capability_of, self.gpus), default=0.0)

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
        for key in ("limited_by", "gpu_capability", "gpu_tflops", "cannot_compile"):
            del keys[key]
        if not self.gpu_memory_bytes:  # as in older records
            del keys["gpu_memory_bytes"]
        return {**keys, "gpus": list(self.gpus), "fingerprint": self.fingerprint}

    @property
    def gpus_text(self) -> str:
        return f"{len(self.gpus)} x {self.gpus[0]}" if self.gpus else "no GPU"

    def __str__(self) -> str:
        return f"{self.cores} cores of {self.cpu}, {self.memory_bytes / 2**30:.0f} GiB, {self.gpus_text}"


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
        gpu_capability=gpu_capability(),
        cannot_compile=cannot_compile(),
        gpu_memory_bytes=gpu_memory_bytes() or 0,
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


LEAST_CONTEXT_BYTES = 256 << 20  # of a GPU's memory: less than any process with a CUDA context holds


def visible_gpus() -> dict[str, str]:
    """UUID -> name of each NVIDIA GPU that a process of CUDA sees; honours CUDA_VISIBLE_DEVICES as CUDA itself does.

    Of GPUs that are divided into parts (MIG) a process sees one part alone, whatever else there is or is named: the
    first (NVIDIA's MIG User Guide, "CUDA Device Enumeration"). A part has a name and a UUID of its own.
    """
    try:
        import pynvml
    except ImportError:  # it comes with what trains; a laptop that only plans has neither
        return {}
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        whole = {pynvml.nvmlDeviceGetUUID(handle): handle for handle in handles}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        words = [*whole] if visible is None else [word.strip() for word in visible.split(",")]
        if words and words[0].startswith("MIG-"):
            return {words[0]: str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(words[0])))}
        seen = {uuid: whole[uuid] for uuid in _named(words, [*whole])}
        divided = [handle for handle in seen.values() if _is_divided(pynvml, handle)]
        seen = dict(_parts(pynvml, divided)[:1]) if divided else seen
        return {uuid: str(pynvml.nvmlDeviceGetName(handle)) for uuid, handle in seen.items()}
    except pynvml.NVMLError:
        return {}


def _named(words: Sequence[str], uuids: Sequence[str]) -> list[str]:
    """The UUIDs of the devices that CUDA_VISIBLE_DEVICES names, by indices or by the beginnings of UUIDs."""
    found: list[str] = []
    for word in words:
        meant = [u for i, u in enumerate(uuids) if word == str(i) or (word.startswith("GPU-") and u.startswith(word))]
        if len(meant) != 1:
            break  # CUDA ignores all that follows a device that is not there
        found += meant
    return found


def _is_divided(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # a GPU that cannot be
        return False


def _parts(nvml: Any, handles: Iterable[Any]) -> list[tuple[str, Any]]:
    """(UUID, handle) of each part of these GPUs, in order. Places for parts may be empty."""
    found: list[tuple[str, Any]] = []
    for handle in handles:
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(nvml.NVMLError):
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
                found.append((str(nvml.nvmlDeviceGetUUID(part)), part))
    return found


def gpu_use() -> list[dict[str, Any]]:
    """The visible GPUs as they are now: the fields of a GpuUse (records/schema.py) each."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(ImportError):
        import pynvml

        for uuid, name in visible_gpus().items():
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                memory = _memory(pynvml, handle)
                use = {"uuid": uuid, "name": name, "used_bytes": int(memory.used), "total_bytes": int(memory.total)}
                found.append(use)
                use["processes"] = len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
                use["utilization_percent"] = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    return found


def _memory(nvml: Any, handle: Any) -> Any:
    """Memory of a GPU, `used` without what the driver keeps for itself; older drivers count that nowhere."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def gpu_memory_bytes() -> int | None:
    """Of the visible NVIDIA GPU that has least; None where there is none."""
    return min((use["total_bytes"] for use in gpu_use()), default=None)


def installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# NVIDIA's GPUs by name -> compute capability (developer.nvidia.com/cuda-gpus). A driver's name and Slurm's read alike:
# `NVIDIA A100-SXM4-40GB`, `nvidia_a100_sxm4_40gb`, `a100`. The first pattern that is found counts.
CAPABILITIES: Mapping[str, float] = {
    r"RTX PRO|RTX ?50[5-9]0\w*|GB10": 12.0,
    r"G?B[123]00\w*": 10.0,
    r"G?H(20|100|200|800)\w*": 9.0,
    r"L(2|4|20|40)S?|RTX ?40[5-9]0\w*|ADA": 8.9,
    r"A(2|10|10G|10M|16|40)|A\d{4}|RTX ?30[5-9]0\w*": 8.6,
    r"A(30|100|800)\w*": 8.0,
    r"T4G?|T\d{3,4}|RTX ?20[5-8]0\w*|RTX ?[3-8]000|GTX ?16[56]0\w*|TITAN RTX": 7.5,
    r"G?V100\w*|TITAN V": 7.0,
    r"P\d{1,4}|GTX ?10[1-8]0\w*|TITAN XP?": 6.0,
    r"[MK]\d{1,4}": 3.5,
}


def capability_of(gpu: str) -> float:
    """The compute capability of a GPU by its name, or the least of its generation; 0 for a name that is not known."""
    words = re.sub(r"[^A-Z0-9]+", " ", gpu.upper())
    return next((number for names, number in CAPABILITIES.items() if re.search(rf"\b({names})\b", words)), 0.0)


def gpu_capability() -> float:
    """The least compute capability of the visible NVIDIA GPUs, as the driver says; 0: none, or it does not say."""
    if not (uuids := list(visible_gpus())):
        return 0.0
    import pynvml

    try:
        handles = map(pynvml.nvmlDeviceGetHandleByUUID, uuids)
        return min(
            float(major + minor / 10) for major, minor in map(pynvml.nvmlDeviceGetCudaComputeCapability, handles)
        )
    except (AttributeError, pynvml.NVMLError):  # of an older library, or of a part of a GPU (MIG)
        return 0.0


def cannot_compile() -> dict[str, str]:
    """Device -> what torch.compile lacks here to compile for it, and the remedy; nothing where it lacks nothing.

    Triton builds launchers of a GPU's kernels with $CC, gcc or clang (triton/runtime/build.py); torch builds a CPU's
    kernels with $CXX, or g++ (torch/_inductor/config.py).
    """
    lacks = {}
    c, cpp = (os.environ.get(name, "").split()[:1] for name in ("CC", "CXX"))
    if not any(map(shutil.which, c or ("gcc", "clang"))):
        lacks["cuda"] = f"no C compiler ({' or '.join(c or ('gcc', 'clang'))}) on PATH: apt install gcc"
    elif find_spec("triton") is None:
        lacks["cuda"] = "triton is not installed: pip install triton"
    if not any(map(shutil.which, cpp or ("g++",))):
        lacks["cpu"] = f"no C++ compiler ({(cpp or ['g++'])[0]}) on PATH: apt install g++"
    return lacks
