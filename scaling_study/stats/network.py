"""Latency and bandwidth of a network: what collectives cost, and the line that fits their seconds. Pure.

Sizes and bandwidths are those of nccl-tests (its doc/PERFORMANCE.md), with n ranks:

                    a rank has      ends with       size             bus bandwidth / algorithm bandwidth
    allreduce       size            size            of the buffer    2 (n-1)/n
    reduce_scatter  size            size / n        of the whole     (n-1)/n
    all_gather      size / n        size            of the whole     (n-1)/n
    broadcast       size (rank 0)   size            of the buffer    1

Algorithm bandwidth is size / seconds: what a caller gets. Bus bandwidth is what the slowest link carries at best; a
library whose algorithm sends more has a factor of its own (`sent_share`). A GB/s is 1e9 bytes a second. In seconds =
alpha + beta x bytes, alpha is what a call costs whatever its size, beta what each byte more costs.

Sizes span five powers of ten, so errors are relative. A measured size is off the line for two reasons: noise, which its
own standard error says, and `misfit`, for no network is a straight line (protocols change with the size, caches end).
The misfit is what the residuals have beyond their standard errors (Paule and Mandel, J. Res. NBS 87, 1982), and the
intervals are Student t over the sizes (Knapp and Hartung, Stat. Med. 22, 2003).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_study.stats.intervals import student_t, within_run
from scaling_study.stats.spread import three_digits

ALLREDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST = "allreduce", "reduce_scatter", "all_gather", "broadcast"
COLLECTIVES = (ALLREDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER)
PARTED = (REDUCE_SCATTER, ALL_GATHER)  # a rank has, or ends with, one n-th of the whole
ELEMENT_BYTES = 4  # fp32
ALIGNED = 4  # elements: parts are whole 16 bytes, as in nccl-tests
MIN_BYTES, MAX_BYTES, SIZE_FACTOR = 1 << 10, 256 << 20, 4
REDUCTION, ROOT = {ALLREDUCE: "sum", REDUCE_SCATTER: "sum"}, {BROADCAST: "0"}  # as the table names them
GLOO = "Gloo"  # as torch.distributed calls it; Horovod calls other functions of it


def sent_share(kind: str, ranks: int, library: str = "") -> float | None:
    """Bytes that a rank sends, mean over the ranks, for each byte of the whole tensor of a collective, or of what
    it hands to `send`. None: no algorithm of that kind is known.

    Without a library: the least that any algorithm can send, which NCCL, MPI and Horovod reach but for their headers.
    GLOO: its reduce-scatter in torch.distributed is an allreduce of which each rank keeps a part, and its reduce a
    reduce-scatter that is gathered (in segments, which need not be equal). Counted in
    tests/frameworks/test_wire_bytes.py.
    """
    once = (ranks - 1) / ranks
    shares = dict.fromkeys((REDUCE_SCATTER, ALL_GATHER, BROADCAST, "reduce", "all_to_all"), once)
    shares |= {ALLREDUCE: 2 * once, "send": 1.0}
    if library == GLOO:
        shares |= {REDUCE_SCATTER: shares[ALLREDUCE], "reduce": once * (1 + 1 / ranks)}
    return shares.get(kind)


def bus_factor(collective: str, ranks: int, library: str = "") -> float:
    """Bus bandwidth over algorithm bandwidth, of one of COLLECTIVES, by the algorithm of `library` (`sent_share`)."""
    return 1.0 if collective == BROADCAST else sent_share(collective, ranks, library) or 0.0


def bus_bandwidth(collective: str, bytes: float, seconds: float, ranks: int, library: str = "") -> float:
    """Bytes a second of the slowest link, by the algorithm of `library`."""
    return bus_factor(collective, ranks, library) * (bytes / seconds)


def sizes(min_bytes: int = MIN_BYTES, max_bytes: int = MAX_BYTES, factor: int = SIZE_FACTOR) -> Iterator[int]:
    """min_bytes, and each `factor` times the one before, up to max_bytes."""
    size = min_bytes
    while size <= max_bytes:
        yield size
        size *= factor


def no_size(min_bytes: int | None, max_bytes: int | None) -> str:
    """The reason why there is no size between these (None: the default); empty if there is one."""
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


# The columns of nccl-tests, then what the OSU benchmarks add with -f: fastest and slowest call, and their number. Last
# what this rank's TCP sockets sent in one call, over the size.
TABLE = (  # name, unit, width
    ("size", "(B)", 12),
    ("count", "(elements)", 12),
    ("type", "", 7),
    ("redop", "", 6),
    ("root", "", 5),
    ("time", "(us)", 8),
    ("algbw", "(GB/s)", 7),
    ("busbw", "(GB/s)", 7),
    ("#wrong", "", 6),
    ("+-95%", "", 7),
    ("min", "(us)", 8),
    ("max", "(us)", 8),
    ("calls", "", 6),
    ("sent", "(size)", 6),
)


def table_header() -> list[str]:
    """Two lines: names, and units."""
    names = " ".join(name.rjust(width) for name, _, width in TABLE)
    units = " ".join(unit.rjust(width) for _, unit, width in TABLE)
    return ["#" + line[1:].rstrip() for line in (names, units)]


def table_row(
    collective: str,
    ranks: int,
    bytes: int,
    seconds: Sequence[float],
    wrong: int,
    half_width: float | None,
    library: str = "",
    sent: int | None = None,
) -> str:
    """One size: mean, fastest and slowest of the calls' seconds; `half_width`: relative, of the mean's interval;
    `sent`: bytes that sockets sent in one call (None: not known)."""
    mean = sum(seconds) / len(seconds)
    cells: tuple[str | float, ...] = (
        str(bytes),
        str(bytes // ELEMENT_BYTES // (ranks if collective in PARTED else 1)),
        "float",
        REDUCTION.get(collective, "none"),
        ROOT.get(collective, "-1"),
        1e6 * mean,
        bytes / mean / 1e9,
        bus_bandwidth(collective, bytes, mean, ranks, library) / 1e9,
        str(wrong),
        "n/a" if half_width is None else f"{100 * half_width:.1f}%",
        1e6 * min(seconds),
        1e6 * max(seconds),
        str(len(seconds)),
        "n/a" if sent is None else sent / bytes,
    )
    row = []
    for cell, (_, _, width) in zip(cells, TABLE, strict=True):
        texts = [cell] if isinstance(cell, str) else [f"{cell:.{decimals}f}" for decimals in (2, 1, 0)]
        row.append(next((text for text in texts if len(text) <= width), texts[-1]).rjust(width))
    return " ".join(row)


Vector = NDArray[Any]  # of floats
FEWEST_SIZES = 3  # for an interval: two sizes lie on a line whatever they are
UNKNOWN_ERROR = 0.05  # relative standard error of a size that was called once, where no other size knows better
ROUNDS = 50


@dataclass(frozen=True)
class Point:
    """The mean seconds of one size, and the standard error of that mean (None: unknown)."""

    bytes: int
    seconds: float
    standard_error: float | None = None

    @classmethod
    def of(cls, bytes: int, seconds: Sequence[float]) -> Point:
        """From the seconds of each call: the standard error is that of a series in time (intervals.py)."""
        interval = within_run(seconds)
        half = interval.half_width
        return cls(bytes, interval.mean, None if half is None else half / 2)


@dataclass(frozen=True)
class AlphaBeta:
    """seconds = alpha_seconds + beta_seconds_per_byte x bytes, with 95 % intervals (None: none is claimed).

    `misfit`: relative standard deviation of the sizes around the line that their noise does not explain (0.1: 10 %).
    `worst`: the largest relative residual, measured / fitted - 1, and `worst_bytes` the size that has it.
    """

    alpha_seconds: float
    alpha_low: float | None
    alpha_high: float | None
    beta_seconds_per_byte: float
    beta_low: float | None
    beta_high: float | None
    misfit: float
    worst: float
    worst_bytes: int

    @property
    def residuals(self) -> str:
        """How far off the sizes are, in words."""
        noise = f"{100 * self.misfit:.0f} % beyond their noise" if self.misfit else "no more than their noise"
        return f"sizes are off the line by {noise}, at most by {100 * self.worst:+.0f} % at {self.worst_bytes} B"

    def seconds(self, bytes: float) -> float:
        """Seconds of one call of this size."""
        return self.alpha_seconds + self.beta_seconds_per_byte * bytes

    @property
    def bytes_per_second(self) -> float:
        """1 / beta: the algorithm bandwidth that large calls come near to."""
        return 1 / self.beta_seconds_per_byte if self.beta_seconds_per_byte > 0 else math.inf

    @property
    def bytes_per_second_bounds(self) -> tuple[float, float] | None:
        """Its 95 % interval; infinite where the slope may be none. None where no interval is claimed."""
        if self.beta_low is None or self.beta_high is None:
            return None
        return (
            1 / self.beta_high if self.beta_high > 0 else math.inf,
            1 / self.beta_low if self.beta_low > 0 else math.inf,
        )


def fit(points: Sequence[Point]) -> AlphaBeta:
    """The line through the points, whose seconds are above 0. Raises ValueError for fewer than two sizes."""
    if len({point.bytes for point in points}) < 2:
        raise ValueError("latency and bandwidth take at least two sizes")
    sizes = np.array([point.bytes for point in points], dtype=np.float64)
    seconds = np.array([point.seconds for point in points], dtype=np.float64)
    known = [p.standard_error / p.seconds for p in points if p.standard_error]
    other = max(known, default=UNKNOWN_ERROR)  # of a size that was called once: as much as the noisiest has
    noise = np.array([p.standard_error / p.seconds if p.standard_error else other for p in points])
    largest = float(sizes.max())
    design, line, misfit = np.column_stack([np.ones(len(sizes)), sizes / largest]), seconds, 0.0
    for _ in range(ROUNDS):  # weights are relative to the line, not to a measured value that noise has made small
        before = line
        misfit = _misfit(design / line[:, None], seconds / line, noise)
        theta = _solved(design / line[:, None], seconds / line, 1 / (noise**2 + misfit**2))
        line = design @ theta
        if np.allclose(line, before, rtol=1e-9, atol=0):
            break
    residuals = seconds / line - 1
    half = _half_widths(design / line[:, None], residuals, 1 / (noise**2 + misfit**2))
    alpha, beta = map(_bounded, (theta / (1, largest)).tolist(), (half / (1, largest)).tolist())
    at = int(np.argmax(np.abs(residuals)))
    return AlphaBeta(*alpha, *beta, misfit, float(residuals[at]), int(sizes[at]))


def _solved(design: Vector, target: Vector, weights: Vector) -> Vector:
    """Weighted least squares; a latency or a slope below zero is none, and is held at zero."""
    theta: Vector = np.linalg.solve(design.T @ (design * weights[:, None]), design.T @ (weights * target))
    if (theta >= 0).all():
        return theta
    kept = int(np.argmax(theta))
    column, alone = design[:, kept], np.zeros(2)
    alone[kept] = (weights * column * target).sum() / (weights * column**2).sum()
    return alone


def _misfit(design: Vector, target: Vector, noise: Vector) -> float:
    """The relative standard deviation, beyond the noise, that makes the residuals as large as they are."""
    freedom = len(target) - 2

    def excess(variance: float) -> float:
        weights = 1 / (noise**2 + variance)
        residuals = target - design @ _solved(design, target, weights)
        return float((weights * residuals**2).sum()) - freedom

    if freedom < 1 or excess(0.0) <= 0:
        return 0.0
    from scipy.optimize import brentq

    high = float(noise.max() ** 2)
    while excess(high) > 0:
        high *= 4
    return math.sqrt(brentq(excess, 0.0, high, xtol=1e-9 * high, rtol=1e-9))


def _bounded(value: float, half: float) -> tuple[float, float | None, float | None]:
    """(value, low, high), never below zero; without bounds where there are none."""
    return (value, max(0.0, value - half), value + half) if math.isfinite(half) else (value, None, None)


def _half_widths(design: Vector, residuals: Vector, weights: Vector) -> Vector:
    """Half widths of the 95 % intervals of both coefficients; infinite for too few sizes.

    Where the residuals happen to be smaller than the noise says, the noise is believed (scale 1): else the intervals
    would cover less than they say.
    """
    freedom = len(residuals) - 2
    if freedom < FEWEST_SIZES - 2:
        return np.full(2, np.inf)
    scale = max(1.0, float((weights * residuals**2).sum()) / freedom)
    covariance: Vector = scale * np.linalg.inv(design.T @ (design * weights[:, None]))
    half: Vector = student_t(0.95, freedom) * np.sqrt(covariance.diagonal())
    return half


def summary(points: Sequence[Point]) -> str:
    """The fit in a line, for a person: latency, bandwidth, and how far off it is."""
    if len({point.bytes for point in points}) < 2:
        return "no fit of latency and bandwidth: it takes two sizes"
    fitted = fit(points)
    latency = None if fitted.alpha_low is None or fitted.alpha_high is None else (fitted.alpha_low, fitted.alpha_high)
    return (
        f"latency {bounded(fitted.alpha_seconds, latency, 1e6)} us, "
        f"bandwidth {bounded(fitted.bytes_per_second, fitted.bytes_per_second_bounds, 1e-9)} GB/s [95 %]; "
        f"{fitted.residuals}"
    )


def bounded(value: float, bounds: tuple[float, float] | None, scale: float) -> str:
    """`4,840 [3,320, 6,370]`, in another unit."""
    interval = "" if bounds is None else f" [{', '.join(three_digits(scale * bound) for bound in bounds)}]"
    return f"{three_digits(scale * value)}{interval}"
