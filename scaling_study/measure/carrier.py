"""What carried a step's gradients: observed on the way, not asked of the library that sends them.

    shared memory   neither of the two below moved: ranks of one host (or GPUs of one, which may copy from peer to peer)
    TCP             the host's network interfaces, loopback included, sent at least half of what collectives were given
    RDMA            InfiniBand or RoCE ports did (their traffic passes the interfaces by)

A library that was built with NCCL need not use it: on GPUs overlap.py sees whether kernels of NCCL ran.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import psutil

PORTS = Path("/sys/class/infiniband")
WORD = 4  # bytes: ports count words of so many
LEAST = 64 * 1024  # bytes: of less, what others send meanwhile would decide
SHARED_MEMORY, TCP, RDMA = "shared memory", "TCP", "RDMA"


class Traffic:
    """Bytes that this host sends while it is entered as a context, all its processes together."""

    def __init__(self) -> None:
        self.by_interfaces = 0
        self.by_rdma = 0

    def __enter__(self) -> Traffic:
        self.by_interfaces, self.by_rdma = -sent_by_interfaces(), -sent_by_rdma()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.by_interfaces += sent_by_interfaces()
        self.by_rdma += sent_by_rdma()

    def carrier(self, handed_over: int) -> str:
        """Which way `handed_over` bytes of this rank's collectives went; empty where they were too few to tell."""
        if handed_over < LEAST:
            return ""
        if 2 * self.by_rdma >= handed_over:
            return RDMA
        return TCP if 2 * self.by_interfaces >= handed_over else SHARED_MEMORY


def sent_by_interfaces() -> int:
    """Since the host started; 0 where the system does not say."""
    counters = psutil.net_io_counters()
    return int(counters.bytes_sent) if counters else 0


def sent_by_rdma(ports: Path = PORTS) -> int:
    """Since the host started, by all ports; 0 without such hardware."""
    return WORD * sum(int(path.read_text()) for path in ports.glob("*/ports/*/counters/port_xmit_data"))
