"""Was the machine quiet? CPU time of this process and of the whole host over the timed window.

Another process that takes half a core for ten minutes is in every number measured meanwhile, and no statistics on
those numbers can tell. The kernel can: what the host was busy with, less what the ranks themselves used, is
that of other processes (the hypervisor's steal included). A loader's processes are the rank's own, and so are those
that they start in turn, such as the daemon of Hivemind's DHT.
"""

from __future__ import annotations

import contextlib
import time

import psutil

IDLE = ("idle", "iowait", "guest", "guest_nice")  # guests are counted in user time already


class QuietMeter:
    """Reads from each `start()` to its `stop()`, added up."""

    def __init__(self) -> None:
        self.own_cpu_seconds = 0.0  # of this process, all its threads, and all processes below it
        self.host_cpu_seconds = 0.0  # of every core of the host
        self._before = (0.0, 0.0)

    def start(self) -> None:
        self._before = (own_seconds(), busy_seconds())

    def stop(self) -> None:
        own, host = self._before
        self.own_cpu_seconds += own_seconds() - own
        self.host_cpu_seconds += busy_seconds() - host


def own_seconds() -> float:
    """CPU time of this process and of those alive that it has started, or they have."""
    seconds = time.process_time()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(child.cpu_times()[:2])
    return seconds


def busy_seconds() -> float:
    """Seconds that the host's cores have been busy since it started, all cores together."""
    times = psutil.cpu_times()
    return float(sum(value for name, value in times._asdict().items() if name not in IDLE))
