"""Linux control groups: the CPU time and memory that a container, a slice or a batch system leaves this process.

A limit on any group, from the process's own up to the root, holds, so the smallest counts. Version 1 has a tree of
folders for each controller and version 2 one for all of them; a machine may have both. Without Linux there is no limit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC = Path("/proc/self")
UNLIMITED_BYTES = 1 << 60  # version 1 writes a number near 2**63 for no limit


def cpu_quota() -> float:
    """Cores' worth of CPU time that this process may use per second; infinite where no group limits it."""
    quotas = [math.inf]
    for folder, version in _groups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota.strip() not in ("max", "-1"):
                quotas.append(int(quota) / int(period))
    return min(quotas)


def throttled_seconds() -> float | None:
    """Time for which the CPU quota has stopped the processes of a group, so far; None where no group counts it."""
    unit, counted = {1: ("throttled_time", 1e-9), 2: ("throttled_usec", 1e-6)}, []
    for folder, version in _groups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            name, scale = unit[version]
            if name in counts:
                counted.append(int(counts[name]) * scale)
    return max(counted, default=None)


def memory_limit_bytes() -> float:
    """Memory that this process and the others of its groups may use together; infinite where no group limits it."""
    limits = [math.inf]
    for folder, version in _groups("memory"):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            limit = int((folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text())
            limits.append(limit if limit < UNLIMITED_BYTES else math.inf)
    return min(limits)


def memory_kills() -> int:
    """The count of processes killed for memory, or 0 where the kernel does not say: in this process's group and those
    below it, where they are counted (others' on a shared machine do not concern us), else on the whole machine.

    Version 1 does not count what happens in groups below, where Slurm puts ranks.
    """
    own = [folder / "memory.events" for folder, version in _groups("memory") if version == 2][:1]
    for counts in (*own, Path("/proc/vmstat")):
        with contextlib.suppress(OSError):
            for line in counts.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _groups(controller: str) -> Iterator[tuple[Path, int]]:
    """(folder, version) of the groups that limit this process, from its own to the root of what it sees."""
    try:
        memberships, mounts = (  # a mount may have any bytes in its path, and no source
            [line.split(*by) for line in (PROC / name).read_text(errors="surrogateescape").splitlines()]
            for name, by in (("cgroup", (":", 2)), ("mountinfo", (" - ", 1)))
        )
    except OSError:
        return
    for before, after in (mount for mount in mounts if len(mount) == 2):
        kind, _, options = (*after.split(" ", 2), "", "")[:3]
        version = {"cgroup": 1, "cgroup2": 2}.get(kind)
        if version is None or (version == 1 and controller not in options.split(",")):
            continue
        root, mounted_at = (word.replace("\\040", " ") for word in before.split()[3:5])
        for _, controllers, path in memberships:
            if controller in controllers.split(",") if version == 1 else not controllers:
                own = PurePosixPath(path)
                below = own.relative_to(root) if own.is_relative_to(root) else PurePosixPath()
                for each in (below, *below.parents):
                    yield Path(mounted_at) / each, version
