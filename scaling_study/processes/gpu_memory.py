"""Waits until the GPU memory of an ended trial is free again, before the next one starts; names what is still held.

Without torch, through NVML, as in machine.py. It has never run on a machine with a GPU: none was available when it was
written.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator

from scaling_study.machine import visible_gpus
from scaling_study.processes.process import Stop

WAIT_SECONDS, POLL_SECONDS = 30.0, 0.5
SLACK_BYTES = 256 << 20  # less than any process with a CUDA context holds


class GpuMemory:
    """The least memory seen in use on each visible GPU: that of other programs, and of no trial of ours."""

    def __init__(self) -> None:
        self._least: dict[str, int] = {}

    def wait_until_freed(self, stop: Stop) -> list[str]:
        """Wait until no GPU holds more than that; in words, what still does after WAIT_SECONDS."""
        deadline = time.monotonic() + WAIT_SECONDS
        while held := list(self._held()):
            if time.monotonic() > deadline or select.select([stop.fileno()], [], [], POLL_SECONDS)[0]:
                break
        return held

    def _held(self) -> Iterator[str]:
        """One clause for each GPU of which more is in use than before; none where there is no NVML."""
        with contextlib.suppress(ImportError):
            import pynvml

            for uuid, name in visible_gpus().items():
                with contextlib.suppress(pynvml.NVMLError):
                    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                    used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
                    least = self._least[uuid] = min(used, self._least.get(uuid, used))
                    if used > least + SLACK_BYTES:
                        pids = [str(user.pid) for user in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
                        who = f"process {', '.join(pids)}" if pids else "an unknown process"
                        yield f"{(used - least) / 2**30:.1f} GiB of {name} were still in use before it began, by {who}"
