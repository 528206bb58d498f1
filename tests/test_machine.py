"""What a machine is, as far as a plan depends on it."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planted_gpus import GIB, Gpu, plant

from scaling_study import control_groups
from scaling_study import machine as looking
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.machine import (
    DALI,
    Machine,
    gpu_memory_bytes,
    gpu_use,
    installed,
    this_machine,
    usable_cores,
    visible_gpus,
)
from scaling_study.models import MODELS
from scaling_study.records.schema import GpuUse
from scaling_study.targets import LOGS

LAPTOP = Machine(2, "Xeon", 8 << 30, (), {"torch": "2.15.0"})


def test_the_fingerprint_is_stable():
    """It is part of every trial's id: change it, and no finished trial is found again."""
    assert LAPTOP.fingerprint == "10074a2b"
    assert replace(LAPTOP, gpus=("Tesla T4", "Tesla T4")).fingerprint == "2d48d6a7"
    assert replace(LAPTOP, libraries={}, memory_bytes=(8 << 30) - (100 << 20)).fingerprint == LAPTOP.fingerprint
    unlike: list[dict[str, Any]] = [{"cores": 4}, {"cpu": "EPYC"}, {"memory_bytes": 16 << 30}, {"gpus": ("T4",)}]
    assert len({replace(LAPTOP, **keys).fingerprint for keys in unlike} | {LAPTOP.fingerprint}) == 5


def test_this_machine_is_looked_at():
    here = this_machine()
    assert 1 <= here.cores <= (os.cpu_count() or 1)
    assert here.cpu and here.memory_bytes > 1 << 28
    needed = {library for one in (*FRAMEWORKS.values(), *MODELS.values()) for library in one.needs}
    needed |= {name for one in FRAMEWORKS.values() for some in one.launcher_needs.values() for name in some}
    weights = {model.imagenet for model in MODELS.values()}
    assert set(here.libraries) <= needed | weights | {"torchmetrics", *LOGS, *DALI}
    assert here.libraries["torch"] == installed("torch")
    assert this_machine() == here, "looked at twice, it is the same"


@pytest.mark.parametrize(("quota", "cores"), [(math.inf, 8), (2.0, 2), (1.5, 1), (0.5, 1), (99.0, 8)])
def test_a_cpu_quota_limits_the_cores(monkeypatch: pytest.MonkeyPatch, quota: float, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(control_groups, "cpu_quota", lambda: quota)
    assert usable_cores() == cores


H100 = "NVIDIA H100 80GB HBM3"


def divided(name: str = H100) -> Gpu:
    """A GPU in two parts, with an empty place before them."""
    parts = [None, *(Gpu(f"{name} MIG 3g.40gb", f"MIG-{n}", total=40 * GIB, busy=None) for n in "ab")]
    return Gpu(name, parts=parts, divided=True)


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, ("A", "B", "C")),
        ("", ()),
        ("1", ("B",)),
        ("2,0", ("C", "A")),
        (" 1 , 2 ", ("B", "C")),
        ("-1", ()),
        ("0,-1,1", ("A",)),  # CUDA stops at the first that is not there
        ("0,3,1", ("A",)),  # one of them is missing
        ("GPU-2e2f-11,GPU-0e", ("C", "A")),
        ("MIG-a", ()),  # a part of a GPU that is whole
    ],
)
def test_gpus_are_those_that_cuda_itself_would_show(monkeypatch, visible, seen):
    plant(monkeypatch, [Gpu(name, divided=None if name == "C" else False) for name in "ABC"], visible)
    assert tuple(visible_gpus().values()) == seen


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, {"MIG-a": f"{H100} MIG 3g.40gb"}),
        ("0", {"MIG-a": f"{H100} MIG 3g.40gb"}),
        ("MIG-b,MIG-a", {"MIG-b": f"{H100} MIG 3g.40gb"}),  # a process sees one part
        ("1", {"GPU-1e2f-11": "B"}),
        ("MIG-c", {}),
    ],
)
def test_of_gpus_in_parts_a_process_sees_one_part(monkeypatch, visible, seen):
    plant(monkeypatch, [divided(), Gpu("B")], visible)
    assert visible_gpus() == seen
    assert gpu_memory_bytes() == ({"MIG": 40, "GPU": 80}[next(iter(seen))[:3]] * GIB if seen else None)


def test_a_gpu_that_is_to_have_parts_and_has_none_is_not_seen(monkeypatch):
    plant(monkeypatch, [Gpu(H100, divided=True, parts=[None])])
    assert visible_gpus() == {} and this_machine().device == "cpu"


def test_a_machine_without_a_driver_or_nvidias_library_has_no_gpus(monkeypatch):
    plant(monkeypatch, [Gpu("A")], driver=False)
    assert visible_gpus() == {} and gpu_use() == [] and gpu_memory_bytes() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert visible_gpus() == {} and gpu_use() == [] and gpu_memory_bytes() is None


@pytest.mark.parametrize("has_version_2", [True, False])
def test_use_of_a_gpu_is_that_of_programs_and_not_the_drivers_own(monkeypatch, has_version_2):
    """An idle H100 has half a gigabyte in use where the driver's own counts; older drivers count it nowhere."""
    own = GIB // 2 if has_version_2 else 0
    busy = Gpu("A", looks=[3 * GIB], reserved=own, pids=[7, 8], busy=97.0, has_version_2=has_version_2)
    part = Gpu("B", looks=[0], reserved=own, busy=None, has_version_2=has_version_2)
    plant(monkeypatch, [part, busy], "1,0")
    seen = [GpuUse(**use) for use in gpu_use()]
    assert [(use.name, use.used_bytes, use.processes, use.utilization_percent) for use in seen] == [
        ("A", 3 * GIB, 2, 97.0),
        ("B", 0, 0, None),
    ]
    assert str(seen[0]) == "3.0 GiB of A, by 2 processes, 97 % busy" and str(seen[1]) == "0.0 GiB of B"
    machine = this_machine()
    assert (machine.gpus, machine.gpu_memory_bytes) == (("A", "B"), 80 * GIB)
    assert machine.to_dict()["gpu_memory_bytes"] == 80 * GIB and "gpu_memory_bytes" not in LAPTOP.to_dict()


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [("processor : 0\nmodel name\t: Intel Xeon\nmodel name : second\n", "Intel Xeon"), ("", "fallback")],
)
def test_the_cpus_model_is_linuxs_word_or_the_platforms(monkeypatch, cpuinfo, model):
    monkeypatch.setattr(Path, "read_text", lambda path: cpuinfo)
    monkeypatch.setattr(looking.platform, "processor", lambda: "fallback")
    assert looking.cpu_model() == model


def slurm(monkeypatch: pytest.MonkeyPatch, *ancestors: str) -> None:
    """The names of the processes above this one."""
    above = [SimpleNamespace(name=lambda name=name: name) for name in ancestors]
    monkeypatch.setattr(looking.psutil, "Process", lambda: SimpleNamespace(parents=lambda: above))


def test_a_slurm_job_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    slurm(monkeypatch, "bash", "slurmstepd")
    for said, cores in (("2", 2), ("64", 8), ("0", 8), ("", 8), ("many", 8)):
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", said)
        assert usable_cores() == cores, said


def test_variables_of_a_job_that_is_over_limit_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    slurm(monkeypatch, "bash", "sshd")
    assert usable_cores() == 8 and this_machine().limited_by == ""
    slurm(monkeypatch, "slurmstepd")
    assert this_machine().cores == 1 and this_machine().limited_by == "SLURM_CPUS_ON_NODE=1"


@pytest.mark.parametrize(("squeue", "runs"), [("echo RUNNING", True), ("echo COMPLETED", False), ("exit 1", False)])
def test_a_job_runs_where_slurm_says_so(
    squeue: str, runs: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slurm(monkeypatch, "bash")
    monkeypatch.setenv("PATH", str(tmp_path))
    looking.job_runs.cache_clear()
    assert not looking.job_runs("41"), "no Slurm here"
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
    (tmp_path / "squeue").chmod(0o755)
    looking.job_runs.cache_clear()
    assert looking.job_runs("41") is runs
    looking.job_runs.cache_clear()
    slurm(monkeypatch, "slurmstepd")
    assert looking.job_runs("41"), "it has started this process"
    looking.job_runs.cache_clear()


GPUS = {  # as drivers and Slurm's resources name them
    12.0: ["NVIDIA GeForce RTX 5090", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx5080"],
    10.0: ["NVIDIA B200", "NVIDIA GB200", "b300"],
    9.0: ["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H200", "NVIDIA GH200 480GB", "h100", "NVIDIA H20"],
    8.9: ["NVIDIA L4", "NVIDIA L40S", "NVIDIA GeForce RTX 4090 D", "NVIDIA RTX 6000 Ada Generation"],
    8.6: ["NVIDIA A10G", "NVIDIA A40", "NVIDIA RTX A6000", "NVIDIA GeForce RTX 3090 Ti", "rtx_3090", "rtx3080ti"],
    8.0: ["NVIDIA A100-SXM4-40GB", "nvidia_a100_80gb_pcie", "a100", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A30"],
    7.5: ["Tesla T4", "Quadro RTX 6000", "NVIDIA TITAN RTX", "NVIDIA GeForce RTX 2080 Ti", "rtx2080ti", "gtx1660"],
    7.0: ["Tesla V100-SXM2-16GB", "Tesla V100S-PCIE-32GB", "v100", "NVIDIA TITAN V"],
    6.0: ["Tesla P100-PCIE-16GB", "Tesla P40", "NVIDIA GeForce GTX 1080 Ti", "NVIDIA TITAN Xp"],
    3.5: ["Tesla K80", "Tesla M60"],
    0.0: ["GPU", "gpu", "NVIDIA Graphics Device", "A", "AMD Instinct MI300X", ""],
}


def test_a_gpus_capability_is_known_by_its_name() -> None:
    assert {number: [looking.capability_of(name) for name in names] for number, names in GPUS.items()} == {
        number: [number] * len(names) for number, names in GPUS.items()
    }
    mixed = replace(LAPTOP, gpus=("NVIDIA H100 PCIe", "Tesla T4"))
    assert (LAPTOP.capability, mixed.capability) == (0.0, 7.5)
    assert replace(mixed, gpus=("NVIDIA H100 PCIe", "GPU")).capability == 0.0, "of one of them nothing is known"
    assert replace(mixed, gpu_capability=8.0).capability == 8.0, "the driver's word counts"
    assert replace(LAPTOP, gpu_capability=8.0, cannot_compile={"cpu": "no g++"}).to_dict() == LAPTOP.to_dict()


def test_the_driver_says_the_least_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, [Gpu("A", capability=None), Gpu("B", capability=None)])
    assert looking.gpu_capability() == 0.0, "an older library does not say"
    plant(monkeypatch, [Gpu("A", capability=(8, 6)), Gpu("B", capability=(7, 5))])
    assert looking.gpu_capability() == 7.5


def test_what_torch_compile_lacks_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(looking, "find_spec", lambda _: None)
    assert looking.cannot_compile() == {
        "cuda": "no C compiler (gcc or clang) on PATH: apt install gcc",
        "cpu": "no C++ compiler (g++) on PATH: apt install g++",
    }
    for program in ("clang", "my-c++"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("CXX", "my-c++ -m64")
    assert looking.cannot_compile() == {"cuda": "triton is not installed: pip install triton"}
    monkeypatch.setattr(looking, "find_spec", lambda name: name)
    assert looking.cannot_compile() == {}
    monkeypatch.setenv("CC", "icc")
    assert looking.cannot_compile() == {"cuda": "no C compiler (icc) on PATH: apt install gcc"}
