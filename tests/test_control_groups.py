"""Limits of control groups, read from stored /proc and /sys trees, and from a real group where this machine has one."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaling_study import control_groups

REAL = Path("/sys/fs/cgroup/cpu")
LOOK = "from scaling_study.machine import usable_cores; print(usable_cores())"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Plants /proc/self/cgroup, mounts, and files of the groups, with {sys} for where they are mounted."""

    def plant(cgroup: str, mounts: list[str], files: dict[str, str]) -> None:
        proc, sys_ = tmp_path / "proc", tmp_path / "sys fs"
        proc.mkdir()
        (proc / "cgroup").write_text(cgroup)
        at = str(sys_).replace(" ", "\\040")  # as the kernel writes it
        (proc / "mountinfo").write_text("".join(f"{line}\n" for line in mounts).format(sys=at))
        for name, text in files.items():
            (sys_ / name).parent.mkdir(parents=True, exist_ok=True)
            (sys_ / name).write_text(text)
        monkeypatch.setattr(control_groups, "PROC", proc)

    return plant


def test_mounts_that_are_not_as_usual_are_no_obstacle(machine, tmp_path):
    """A stick whose name is not UTF-8, and a mount without a source."""
    odd = ["31 1 0:30 / /media/Ger{{}}t rw - vfat /dev/sdb rw", "32 1 0:31 / /mnt rw - tmpfs  rw"]
    machine("0::/a\n", [*odd, *V2], {"a/cpu.max": "50000 100000\n"})
    mounts = tmp_path / "proc" / "mountinfo"
    mounts.write_bytes(mounts.read_bytes().replace(b"{}", b"\xe4"))
    assert control_groups.cpu_quota() == 0.5


V2 = ["27 1 254:0 / / rw - ext4 /dev/vda rw", "30 23 0:26 / {sys} rw,nosuid - cgroup2 cgroup rw,nsdelegate"]
V1 = ["30 25 0:27 / {sys}/cpu rw - cgroup cgroup rw,cpu,cpuacct", "31 25 0:28 / {sys}/mem rw - cgroup cgroup rw,memory"]
DOCKER_V1 = ["30 25 0:27 /docker/1f {sys}/cpu ro - cgroup cgroup rw,cpu,cpuacct"]


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "cores"),
    [
        ("0::/user.slice/run-1.scope\n", V2, {"user.slice/run-1.scope/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/user.slice/run-1.scope\n", V2, {"user.slice/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", V2, {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a/b\n", V2, {"a/cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", V2, {"cpu.max": "300000 100000\n"}, 3.0),  # in a container: its root is its own group
        ("0::/../../x\n", V2, {"cpu.max": "garbage\n"}, math.inf),
        (
            "4:memory:/\n3:cpu,cpuacct:/slurm/job_7\n0::/\n",
            V1,
            {"cpu/slurm/job_7/cpu.cfs_quota_us": "-1\n", "cpu/slurm/job_7/cpu.cfs_period_us": "100000\n"},
            math.inf,
        ),
        (
            "3:cpu,cpuacct:/slurm/job_7\n",
            V1,
            {"cpu/slurm/cpu.cfs_quota_us": "250000\n", "cpu/slurm/cpu.cfs_period_us": "100000\n"},
            2.5,
        ),
        (
            "3:cpu,cpuacct:/docker/1f\n",  # version 1 without a namespace of its own: the mount begins at its group
            DOCKER_V1,
            {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            1.0,
        ),
        ("", [], {}, math.inf),
    ],
)
def test_the_smallest_cpu_quota_up_to_the_root_counts(machine, cgroup, mounts, files, cores) -> None:
    machine(cgroup, mounts, files)
    assert control_groups.cpu_quota() == cores


def test_a_machine_without_proc_has_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "PROC", tmp_path)
    assert control_groups.cpu_quota() == control_groups.memory_limit_bytes() == math.inf
    assert control_groups.throttled_seconds() is None


@pytest.mark.parametrize(
    ("cgroup", "mounts", "name", "text", "seconds"),
    [
        ("0::/a\n", V2, "a/cpu.stat", "usage_usec 9\nthrottled_usec 1500000\n", 1.5),
        ("0::/a\n", V2, "a/cpu.stat", "usage_usec 9\n", None),
        ("3:cpu,cpuacct:/a\n", V1, "cpu/a/cpu.stat", "nr_throttled 649\nthrottled_time 2500000000\n", 2.5),
    ],
)
def test_throttled_time_is_counted(machine, cgroup, mounts, name, text, seconds) -> None:
    machine(cgroup, mounts, {name: text})
    assert control_groups.throttled_seconds() == seconds


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "limit"),
    [
        ("0::/s/j\n", V2, {"s/j/memory.max": "max\n"}, math.inf),
        ("0::/s/j\n", V2, {"s/j/memory.max": "max\n", "s/memory.max": "8589934592\n"}, 8 << 30),
        ("0::/s/j\n", V2, {"s/j/memory.max": "4294967296\n", "s/memory.max": "8589934592\n"}, 4 << 30),
        ("4:memory:/j\n", V1, {"mem/j/memory.limit_in_bytes": "9223372036854771712\n"}, math.inf),
        ("4:memory:/j\n", V1, {"mem/j/memory.limit_in_bytes": "4294967296\n"}, 4 << 30),
    ],
)
def test_the_memory_that_a_group_may_use(machine, cgroup, mounts, files, limit) -> None:
    machine(cgroup, mounts, files)
    assert control_groups.memory_limit_bytes() == limit


def test_processes_that_were_killed_for_memory_are_counted_in_the_own_group(machine) -> None:
    machine("0::/s/j\n", V2, {"s/j/memory.events": "oom 3\noom_kill 2\n", "s/memory.events": "oom_kill 9\n"})
    assert control_groups.memory_kills() == 2


@pytest.mark.skipif(not os.access(REAL, os.W_OK), reason="needs root and a CPU controller of version 1")
def test_half_a_core_in_a_real_group() -> None:
    group = REAL / f"test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text("50000")
        inside = f"echo $$ > {group}/tasks && exec {sys.executable} -c {LOOK!r}"
        done = subprocess.run(["sh", "-c", inside], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "1"
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()
