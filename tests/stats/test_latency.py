"""Latency and bandwidth: exact where the network is a line; sizes, factors and the table of nccl-tests."""

from __future__ import annotations

from math import inf, isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.stats import network
from scaling_study.stats.network import (
    COLLECTIVES,
    GLOO,
    Point,
    bus_bandwidth,
    bus_factor,
    fit,
    part_elements,
    sizes,
    summary,
    whole_bytes,
)
from scaling_study.stats.spread import three_digits

SIZES = list(sizes())
ALPHA, BETA = 100e-6, 1e-9  # 100 us, 1 GB/s
MANY_TO_FEW = [300] * 6 + [50, 20, 10, 10]  # calls of each size, as a time bound leaves them


def simulated(rng: np.random.Generator, calls: list[int], noise: float, off: float = 0.0) -> list[Point]:
    """A network of known latency and bandwidth: gamma noise in every call, and each size off the line by `off`."""
    points = []
    for size, count in zip(SIZES, calls, strict=True):
        mean = (ALPHA + BETA * size) * np.exp(off * rng.normal())
        seconds = rng.gamma(1 / noise**2, mean * noise**2, count)
        points.append(Point(size, float(seconds.mean()), float(seconds.std(ddof=1) / count**0.5)))
    return points


@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-6), st.lists(st.integers(1, 1 << 30), min_size=2, unique=True))
def test_a_line_is_found_exactly(alpha: float, beta: float, sizes: list[int]) -> None:
    made = fit([Point(size, alpha + beta * size, 1e-3 * alpha) for size in sizes])
    for size in (min(sizes), max(sizes)):
        assert isclose(made.seconds(size), alpha + beta * size, rel_tol=1e-6)
    assert made.misfit < 1e-6 and abs(made.worst) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "off", "least"), [(0.3, 0.0, 0.92), (0.3, 0.05, 0.91), (0.3, 0.2, 0.92)], ids=["line", "near", "crooked"]
)
def test_intervals_cover_the_truth_as_often_as_they_say(noise: float, off: float, least: float) -> None:
    """95 % of them, over simulated networks; 300 can tell 95 from 91."""
    rng = np.random.default_rng(0)
    fits = [fit(simulated(rng, MANY_TO_FEW, noise, off)) for _ in range(300)]
    for low, high, truth in (("alpha_low", "alpha_high", ALPHA), ("beta_low", "beta_high", BETA)):
        assert np.mean([getattr(f, low) <= truth <= getattr(f, high) for f in fits]) >= least
    widths = [((f.alpha_high or inf) - (f.alpha_low or 0.0)) / ALPHA for f in fits]
    assert np.median(widths) < {0.0: 0.12, 0.05: 0.25, 0.2: 0.8}[off], "an interval that says nothing covers too"


@pytest.mark.slow
def test_the_misfit_is_what_the_noise_does_not_explain() -> None:
    rng = np.random.default_rng(1)
    for off in (0.0, 0.05, 0.2):
        found = np.median([fit(simulated(rng, MANY_TO_FEW, 0.2, off)).misfit for _ in range(50)])
        assert abs(found - off) < 0.03


def test_a_kink_between_two_protocols_is_said_by_the_residual() -> None:
    """Above 64 KiB another protocol, ten times the latency: no line, and the fit says where it is worst."""
    seconds = [(1e-5 if size <= 1 << 16 else 1e-4) + 1e-10 * size for size in SIZES]
    made = fit([Point(size, s, 0.01 * s) for size, s in zip(SIZES, seconds, strict=True)])
    assert made.misfit > 0.3 and made.worst > 0.5 and made.worst_bytes == 1 << 18
    assert made.alpha_high is not None and made.alpha_low is not None
    assert made.alpha_high - made.alpha_low > 0.5 * made.alpha_seconds, "what does not fit is not claimed narrowly"


def test_errors_are_relative() -> None:
    """10 % more at 256 MiB, where it is milliseconds, moves the latency no more than 10 % at 1 KiB would."""
    points = [Point(size, ALPHA + BETA * size, 1e-3 * (ALPHA + BETA * size)) for size in SIZES]
    points[3] = Point(SIZES[3], 3 * points[3].seconds, 3 * points[3].seconds)  # not known well: it counts less
    points[-1] = Point(SIZES[-1], 1.1 * points[-1].seconds, 1e-4)
    assert isclose(fit(points).alpha_seconds, ALPHA, rel_tol=0.05)


def test_a_person_reads_microseconds_and_gigabytes() -> None:
    points = [Point(size, ALPHA + BETA * size, 1e-6 * ALPHA) for size in SIZES]
    assert summary(points).startswith("latency 100 [100, 100] us, bandwidth 1 [1, 1] GB/s [95 %]")
    assert [three_digits(v) for v in (4838.2, 31.24, 0.05731, inf, 0.0)] == ["4,840", "31.2", "0.0573", "inf", "0"]


def test_two_sizes_make_a_line_and_no_interval() -> None:
    made = fit([Point(1024, 2e-6, 1e-8), Point(1 << 20, 1e-3, 1e-5)])
    assert (made.alpha_low, made.alpha_high, made.beta_low, made.beta_high) == (None,) * 4
    assert made.bytes_per_second_bounds is None and made.misfit == 0
    assert made.alpha_seconds > 0


def test_a_slope_or_latency_below_zero_is_none() -> None:
    falling = fit([Point(size, 1e-3 / (index + 1), 1e-5) for index, size in enumerate(SIZES)])
    assert falling.beta_seconds_per_byte == 0 and falling.bytes_per_second == inf
    assert falling.bytes_per_second_bounds is not None and falling.bytes_per_second_bounds[1] == inf
    steep = fit([Point(size, 1e-12 * size**1.3, 1e-14 * size**1.3) for size in SIZES])
    assert steep.alpha_seconds == 0 and steep.alpha_low == 0 and steep.beta_seconds_per_byte > 0


@pytest.mark.parametrize("points", [[], [Point(1024, 1.0)], [Point(1024, 1.0), Point(1024, 2.0)]])
def test_one_size_is_no_line(points: list[Point]) -> None:
    with pytest.raises(ValueError, match="at least two sizes"):
        fit(points)
    assert summary(points).startswith("no fit")


@pytest.mark.parametrize(
    ("collective", "of_2", "of_3", "of_8"),
    [
        ("allreduce", 1, 4 / 3, 7 / 4),
        ("reduce_scatter", 1 / 2, 2 / 3, 7 / 8),
        ("all_gather", 1 / 2, 2 / 3, 7 / 8),
        ("broadcast", 1, 1, 1),
    ],
)
def test_bus_factors(collective: str, of_2: float, of_3: float, of_8: float) -> None:
    """At two ranks an allreduce looks like a broadcast: three and eight tell all of them apart."""
    for ranks, factor in ((2, of_2), (3, of_3), (8, of_8)):
        assert isclose(bus_factor(collective, ranks), factor)
        assert isclose(bus_bandwidth(collective, 6e9, 2.0, ranks), 3e9 * factor)


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5)])
def test_a_reduce_scatter_of_gloo_loads_the_bus_as_an_allreduce_does(ranks: int, factor: float) -> None:
    assert bus_factor("reduce_scatter", ranks, GLOO) == bus_factor("allreduce", ranks, GLOO) == factor
    assert bus_factor("all_gather", ranks, GLOO) == bus_factor("all_gather", ranks)


def test_the_sizes_are_1_kib_to_256_mib_by_four() -> None:
    assert list(network.sizes()) == [1024 * 4**power for power in range(10)]
    assert list(network.sizes())[-1] == 256 * 2**20
    assert list(network.sizes(8, 100, 3)) == [8, 24, 72]


@given(st.sampled_from(COLLECTIVES), st.integers(4, 1 << 30), st.integers(2, 1000))
def test_parts_fill_their_size_as_far_as_they_can(collective: str, bytes: int, ranks: int) -> None:
    part = part_elements(collective, bytes, ranks)
    whole = whole_bytes(collective, part, ranks)
    assert part > 0
    assert whole <= bytes < whole + 16 * ranks or whole == 16 * ranks


TABLE = """
#       size        count    type  redop  root     time   algbw   busbw #wrong   +-95%      min      max  calls   sent
#        (B)   (elements)                          (us)  (GB/s)  (GB/s)                    (us)     (us)        (size)
        1024          256   float    sum    -1    35.50    0.03    0.03      0    3.1%    31.00    40.00      2    n/a
     1048576       262144   float   none     0  1000.00    1.05    1.05      0    0.0%  1000.00  1000.00    100   0.00
        1008           84   float    sum    -1     0.25    4.03    5.38      1   50.0%     0.25     0.25     10   1.33
   268435456      8388608   float   none    -1 400000.0    0.67    0.59      3     n/a 400000.0 400000.0      1    n/a
"""


def test_the_table_is_that_of_nccl_tests_with_the_columns_of_osu() -> None:
    made = [
        *network.table_header(),
        network.table_row("allreduce", 2, 1024, [31e-6, 40e-6], 0, 0.031),
        network.table_row("broadcast", 3, 1048576, [1e-3] * 100, 0, 0.0, "", 0),
        network.table_row("reduce_scatter", 3, 1008, [0.25e-6] * 10, 1, 0.5, GLOO, 1344),
        network.table_row("all_gather", 8, 268435456, [0.4], 3, None),
    ]
    assert made == TABLE.strip("\n").split("\n")
