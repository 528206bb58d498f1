"""The four collectives of data parallelism: what a size is, which bandwidths follow from it, and the table they fill.

Sizes and bandwidths are those of nccl-tests (its doc/PERFORMANCE.md), with n ranks:

                    a rank has      ends with       size             bus bandwidth / algorithm bandwidth
    allreduce       size            size            of the buffer    2 (n-1)/n
    reduce_scatter  size            size / n        of the whole     (n-1)/n
    all_gather      size / n        size            of the whole     (n-1)/n
    broadcast       size (rank 0)   size            of the buffer    1

Algorithm bandwidth is size / seconds: what a caller gets. Bus bandwidth is what the slowest link carries at best, so it
can be held against the hardware whatever n is. A GB/s is 1e9 bytes a second.

Pure; imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

ALLREDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST = "allreduce", "reduce_scatter", "all_gather", "broadcast"
COLLECTIVES = (ALLREDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER)
PARTED = (REDUCE_SCATTER, ALL_GATHER)  # a rank has, or ends with, one n-th of the whole
ELEMENT_BYTES = 4  # fp32
ALIGNED = 4  # elements: parts are whole 16 bytes, as in nccl-tests
MIN_BYTES, MAX_BYTES, SIZE_FACTOR = 1 << 10, 256 << 20, 4
REDUCTION, ROOT = {ALLREDUCE: "sum", REDUCE_SCATTER: "sum"}, {BROADCAST: "0"}  # as the table names them


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth. Raises ValueError for another collective, or fewer than one rank."""
    if ranks < 1:
        raise ValueError(f"{ranks} ranks")
    match collective:
        case "allreduce":
            return 2 * (ranks - 1) / ranks
        case "reduce_scatter" | "all_gather":
            return (ranks - 1) / ranks
        case "broadcast":
            return 1.0
    raise ValueError(f"{collective!r} is none of {', '.join(COLLECTIVES)}")


def algorithm_bandwidth(bytes: float, seconds: float) -> float:
    """Bytes a second, as the caller sees them."""
    return bytes / seconds


def bus_bandwidth(collective: str, bytes: float, seconds: float, ranks: int) -> float:
    """Bytes a second of the slowest link, were the algorithm the best there is."""
    return bus_factor(collective, ranks) * algorithm_bandwidth(bytes, seconds)


def sizes(min_bytes: int = MIN_BYTES, max_bytes: int = MAX_BYTES, factor: int = SIZE_FACTOR) -> Iterator[int]:
    """min_bytes, and each `factor` times the one before, up to max_bytes."""
    size = min_bytes
    while size <= max_bytes:
        yield size
        size *= factor


def no_size(min_bytes: int | None, max_bytes: int | None) -> str:
    """Why there is no size between these (None: the default); empty if there is one."""
    least, most = min_bytes or MIN_BYTES, max_bytes or MAX_BYTES
    if least <= most:
        return ""
    min_default, max_default = ("" if given else " (the default)" for given in (min_bytes, max_bytes))
    return f"min_bytes={least}{min_default} is more than max_bytes={most}{max_default}"


def part_elements(collective: str, bytes: int, ranks: int) -> int:
    """Elements of one rank's part (of the buffer where it is not parted): the largest that fit in `bytes`, at least
    one element, or as few as are aligned."""
    if collective not in PARTED:
        return max(1, bytes // ELEMENT_BYTES)
    return max(ALIGNED, bytes // ELEMENT_BYTES // ranks // ALIGNED * ALIGNED)


def whole_bytes(collective: str, part: int, ranks: int) -> int:
    """The size that a call with parts of so many elements has."""
    return part * ELEMENT_BYTES * (ranks if collective in PARTED else 1)


# The columns of nccl-tests, then what the OSU benchmarks add with -f: fastest and slowest call, and their number.
TABLE = (  # name, unit, width
    ("size", "(B)", 12), ("count", "(elements)", 12), ("type", "", 7), ("redop", "", 6), ("root", "", 5),
    ("time", "(us)", 8), ("algbw", "(GB/s)", 7), ("busbw", "(GB/s)", 7), ("#wrong", "", 6),
    ("+-95%", "", 7), ("min", "(us)", 8), ("max", "(us)", 8), ("calls", "", 6),
)  # fmt: skip


def table_header() -> list[str]:
    """Two lines: names, and units."""
    names = " ".join(name.rjust(width) for name, _, width in TABLE)
    units = " ".join(unit.rjust(width) for _, unit, width in TABLE)
    return ["#" + line[1:].rstrip() for line in (names, units)]


def table_row(
    collective: str, ranks: int, bytes: int, seconds: Sequence[float], wrong: int, half_width: float | None
) -> str:
    """One size: mean, fastest and slowest of the calls' seconds; `half_width`: relative, of the mean's interval."""
    mean = sum(seconds) / len(seconds)
    rates = (algorithm_bandwidth(bytes, mean), bus_bandwidth(collective, bytes, mean, ranks))
    cells: tuple[str | float, ...] = (
        str(bytes), str(bytes // ELEMENT_BYTES // (ranks if collective in PARTED else 1)),
        "float", REDUCTION.get(collective, "none"), ROOT.get(collective, "-1"),
        1e6 * mean, rates[0] / 1e9, rates[1] / 1e9, str(wrong),
        "n/a" if half_width is None else f"{100 * half_width:.1f}%", 1e6 * min(seconds), 1e6 * max(seconds),
        str(len(seconds)),
    )  # fmt: skip
    return " ".join(_fitting(cell, width).rjust(width) for cell, (_, _, width) in zip(cells, TABLE, strict=True))


def _fitting(cell: str | float, width: int) -> str:
    """A number with two decimals where they fit, else with fewer."""
    if isinstance(cell, str):
        return cell
    return next((text for places in (2, 1) if len(text := f"{cell:.{places}f}") <= width), f"{cell:.0f}")
