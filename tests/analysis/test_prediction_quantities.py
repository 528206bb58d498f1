"""What a person types for a network is read as the field writes it; nonsense is one line that says what is right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.prediction import network


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("25Gbit", 3.125e9), ("25 Gbit/s", 3.125e9), ("25Gbps", 3.125e9), ("25Gb/s", 3.125e9), ("200Mbit", 25e6),
        ("1.5Tbit", 187.5e9), ("8bit", 1.0), ("8kbit", 1e3), ("8Kbit", 1e3), ("25Gbits", 3.125e9),
        ("3GB/s", 3e9), ("3GB", 3e9), ("800MiB/s", 800 * 2**20), ("1e9B/s", 1e9), (".5GB/s", 5e8), (" 3 GB/s ", 3e9),
    ],
)  # fmt: skip
def test_bandwidths(text: str, bytes_per_second: float) -> None:
    assert network.bandwidth(text) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("25gb", "25gb may be bits or bytes: write 25Gbit or 25GB/s"),
        ("10gbps", "10gbps may be bits or bytes: write 10Gbit or 10GB/s"),
        ("fast", "fast is not a bandwidth, such as 25Gbit or 3GB/s"),
        ("", "nothing is not a bandwidth, such as 25Gbit or 3GB/s"),
        ("25", "25 is not a bandwidth, such as 25Gbit or 3GB/s"),
        ("25furlongs", "25furlongs is not a bandwidth, such as 25Gbit or 3GB/s"),
        ("-3GB/s", "-3GB/s is not a bandwidth, such as 25Gbit or 3GB/s"),
        ("0Gbit", "0Gbit is no bandwidth that a link could have: it must be above 0"),
        ("1e999Gbit", "1e999Gbit is no bandwidth that a link could have: it must be above 0"),
        ("nanGbit", "nanGbit is not a bandwidth, such as 25Gbit or 3GB/s"),
    ],
)
def test_what_is_no_bandwidth(text: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        network.bandwidth(text)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("text", "seconds"), [("5us", 5e-6), ("5µs", 5e-6), ("0.1ms", 1e-4), ("2s", 2.0), ("300 ns", 3e-7), ("0us", 0.0)]
)
def test_times(text: str, seconds: float) -> None:
    assert network.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "5 minutes", "us", "-5us", "5Gbit", "1e999s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"no time that ends|is not a time, such as 5us or 0.1ms"):
        network.duration(text)


@pytest.mark.parametrize(("text", "size"), [("64MiB", 64 << 20), ("25MB", 25_000_000), ("1000", 1000), ("1B", 1)])
def test_sizes(text: str, size: int) -> None:
    assert network.size(text) == size


@pytest.mark.parametrize("text", ["64", "64MiB"])
def test_a_size_is_whole(text: str) -> None:
    assert isinstance(network.size(text), int)


@pytest.mark.parametrize("text", ["64Mbit", "64MB/s", "0B", "0.1B", "many", "1e99GB", "-1MiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|is no size of a buffer"):
        network.size(text)


def test_worker_counts_are_sorted_and_each_there_once() -> None:
    assert network.workers("512,4, 8,4") == (4, 8, 512)
    assert network.workers("100000") == (100_000,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4,x", "x in '4,x' is not a number of workers, as in 4,8,64"),
        ("4,,8", "nothing in '4,,8' is not a number of workers, as in 4,8,64"),
        ("1.5", "1.5 in '1.5' is not a number of workers, as in 4,8,64"),
        ("0", "0 workers: it must be between 1 and 100,000"),
        ("4,200000", "200,000 workers: it must be between 1 and 100,000"),
        ("-4", "-4 in '-4' is not a number of workers, as in 4,8,64"),
    ],
)
def test_what_is_no_list_of_workers(text: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        network.workers(text)
    assert str(error.value) == said


@pytest.mark.slow
@given(st.text(max_size=12))
def test_whatever_is_typed_is_a_value_or_one_line(text: str) -> None:
    for parse in (network.bandwidth, network.duration, network.size, network.workers):
        try:
            parse(text)
        except ValueError as error:
            assert "\n" not in str(error).replace(text, "")
