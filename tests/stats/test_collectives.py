"""Sizes, factors and the table of the collectives, against literals of nccl-tests' own definitions."""

from __future__ import annotations

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_study.stats import network
from scaling_study.stats.network import COLLECTIVES, bus_bandwidth, bus_factor, part_elements, whole_bytes


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


def test_the_sizes_are_1_kib_to_256_mib_by_four() -> None:
    assert list(network.sizes()) == [1024 * 4**power for power in range(10)]
    assert list(network.sizes())[-1] == 256 * 2**20
    assert list(network.sizes(8, 100, 3)) == [8, 24, 72]


@pytest.mark.parametrize(
    ("collective", "ranks", "part", "whole"),
    [
        ("allreduce", 3, 256, 1024),
        ("broadcast", 8, 256, 1024),
        ("all_gather", 2, 128, 1024),
        ("reduce_scatter", 3, 84, 1008),  # 85 floats fit a third of 1024 B, 84 of them are whole 16 bytes
        ("all_gather", 8, 32, 1024),
        ("all_gather", 512, 4, 8192),  # no part is empty
    ],
)
def test_parts_of_1024_bytes(collective: str, ranks: int, part: int, whole: int) -> None:
    """The size of an all-gather and a reduce-scatter is that of all parts together, as in nccl-tests."""
    assert part_elements(collective, 1024, ranks) == part
    assert whole_bytes(collective, part, ranks) == whole


@given(st.sampled_from(COLLECTIVES), st.integers(4, 1 << 30), st.integers(2, 1000))
def test_parts_fill_their_size_as_far_as_they_can(collective: str, bytes: int, ranks: int) -> None:
    part = part_elements(collective, bytes, ranks)
    whole = whole_bytes(collective, part, ranks)
    assert part > 0
    assert whole <= bytes < whole + 16 * ranks or whole == 16 * ranks


def test_no_size_says_both_values() -> None:
    assert network.no_size(None, None) == "" == network.no_size(1024, 1024)
    assert network.no_size(4096, 1024) == "min_bytes=4096 is more than max_bytes=1024"
    assert network.no_size(None, 512) == "min_bytes=1024 (the default) is more than max_bytes=512"
    assert network.no_size(1 << 30, None) == "min_bytes=1073741824 is more than max_bytes=268435456 (the default)"


TABLE = """
#       size        count    type  redop  root     time   algbw   busbw #wrong   +-95%      min      max  calls
#        (B)   (elements)                          (us)  (GB/s)  (GB/s)                    (us)     (us)
        1024          256   float    sum    -1    35.50    0.03    0.03      0    3.1%    31.00    40.00      2
     1048576       262144   float   none     0  1000.00    1.05    1.05      0    0.0%  1000.00  1000.00    100
        1008           84   float    sum    -1     0.25    4.03    2.69      1   50.0%     0.25     0.25     10
   268435456      8388608   float   none    -1 400000.0    0.67    0.59      3     n/a 400000.0 400000.0      1
"""


def test_the_table_is_that_of_nccl_tests_with_the_columns_of_osu() -> None:
    made = [
        *network.table_header(),
        network.table_row("allreduce", 2, 1024, [31e-6, 40e-6], 0, 0.031),
        network.table_row("broadcast", 3, 1048576, [1e-3] * 100, 0, 0.0),
        network.table_row("reduce_scatter", 3, 1008, [0.25e-6] * 10, 1, 0.5),
        network.table_row("all_gather", 8, 268435456, [0.4], 3, None),
    ]
    assert made == TABLE.strip("\n").split("\n")
