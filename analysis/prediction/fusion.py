"""Which gradients travel together, and when they may leave.

    gradients     g1 g2   g3 g4 g5     g6 | backward is over
    cycles        . . . (g1 g2) . . (g3 g4 g5) . (g6)     Horovod looks every cycle and fuses what it finds
    buckets       (g1 g2 g3)    (g4 g5 g6)                DDP fills buckets in the order of arrival; a full one leaves
    whole                                  (g1 ... g6)    nothing leaves before backward is over

Sergeev and Del Balso, arXiv 1802.05799; Li et al., arXiv 2006.15704.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIB = 2**20
CYCLES, BUCKETS, WHOLE = "cycles", "buckets", "whole"

Gradient = tuple[float, float]  # bytes, seconds since the beginning of backward


@dataclass(frozen=True)
class Fusion:
    """`most_bytes`: of one call. Horovod compresses before it fuses, DDP after: `counts_wire_bytes` says which."""

    kind: str = CYCLES
    most_bytes: float = 128 * MIB
    first_bytes: float | None = None  # of DDP's first bucket, so that something leaves early
    cycle_seconds: float = 0.001
    counts_wire_bytes: bool = True

    def __post_init__(self) -> None:
        if self.most_bytes < 1 or self.cycle_seconds < 0:
            raise ValueError(f"gradients cannot be fused by {self.most_bytes} bytes every {self.cycle_seconds} s")


HOROVOD = Fusion()  # the defaults of 0.28.1: 128 MiB, 1 ms; until 2019 they were 64 MiB and 5 ms
DDP = Fusion(BUCKETS, 25 * MIB, first_bytes=MIB, counts_wire_bytes=False)
AFTERWARDS = Fusion(WHOLE, 64 * MIB)  # horovod_runs/mpi_allreduce.py


def fused(sizes: Iterable[float], most_bytes: float) -> list[float]:
    """Bytes of the calls that neighbours are fused into: at most `most_bytes`, or one that is larger by itself."""
    calls: list[float] = []
    for size in sizes:
        if calls and calls[-1] + size <= most_bytes:
            calls[-1] += size
        else:
            calls.append(size)
    return calls


def buckets(gradients: Sequence[Gradient], fusion: Fusion, wire: float = 1.0) -> list[Gradient]:
    """(bytes on the wire, when the last of its gradients is there) of each bucket, in order.

    A bucket is closed once it holds its limit or more: by its last gradient it may be larger. `wire`: bytes on the wire
    for each byte of a gradient, a half with 16-bit allreduce.
    """
    joined: list[Gradient] = []
    limit, held, there = fusion.first_bytes or fusion.most_bytes, 0.0, 0.0
    for size, arrival in gradients:
        held, there = held + size * wire, max(there, arrival)
        if held >= limit * (1.0 if fusion.counts_wire_bytes else wire):
            joined.append((held, there))
            limit, held = fusion.most_bytes, 0.0
    return [*joined, (held, there)] if held else joined
