"""A limit on the memory of a process tree, of version 1 or 2 of Linux's control groups; the kernel kills beyond it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PLACES = (  # folder, its limit, who is in it
    (ROOT / "memory", "memory.limit_in_bytes", "tasks"),
    (ROOT, "memory.max", "cgroup.procs"),
)


class NotHere(Exception):
    """There is no such limit to be had, and why."""


@contextlib.contextmanager
def limited(size: int) -> Iterator[tuple[str, ...]]:
    """What stands before a command that may use `size` bytes with all it starts. Raises NotHere."""
    why = "no control group of memory"
    for parent, limit, members in PLACES:
        if not (parent / members).exists():
            continue
        group = parent / f"faults-{os.getpid()}"
        try:
            group.mkdir(exist_ok=True)
            (group / limit).write_text(str(size))
        except OSError as error:
            why = f"{group / limit}: {error.strerror}"
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        try:
            yield ("sh", "-c", f'echo $$ > {group / members} && exec "$@"', "sh")
        finally:
            for _ in range(100):  # the last process may take a moment to be gone
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.05)
        return
    raise NotHere(why)
