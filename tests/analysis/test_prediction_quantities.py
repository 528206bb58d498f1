"""Values typed for a network are read as the field writes them; nonsense is one line that says what is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.prediction import network


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        *((network.bandwidth, text, 3.125e9) for text in ("25Gbit", "25 Gbit/s", "25Gbps", "25Gb/s", "25Gbits")),
        *((network.bandwidth, text, 1e3) for text in ("8kbit", "8Kbit")),
        *((network.bandwidth, text, 3e9) for text in ("3GB/s", "3GB", " 3 GB/s ", "3e9B/s")),
        (network.bandwidth, "800MiB/s", 800 * 2**20),
        (network.bandwidth, ".5GB/s", 5e8),
        *((network.duration, text, 5e-6) for text in ("5us", "5µs", "0.005ms", "5000 ns")),
        (network.duration, "0us", 0.0),
        *((network.size, text, 64 << 20) for text in ("64MiB", "67108864", "67108864B")),
        (network.size, "25MB", 25_000_000),
        (network.workers, "512,4, 8,4", (4, 8, 512)),
        *((network.share, text, 0.02) for text in ("2%", " 2 %", "0.02")),
    ],
)
def test_what_is_typed_has_a_value(parse: Callable[[str], object], text: str, value: object) -> None:
    read = parse(text)
    assert read == pytest.approx(value) and isinstance(read, int | float | tuple)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (network.bandwidth, "25gb", "25gb may be bits or bytes: write 25Gbit or 25GB/s"),
        *((network.bandwidth, text, "is not a bandwidth, such as") for text in ("", "25", "25furlongs", "-3GB/s")),
        *((network.bandwidth, text, "it must be above 0") for text in ("0Gbit", "1e999Gbit")),
        *((network.duration, text, "is not a time, such as 5us") for text in ("5", "us", "-5us", "5Gbit")),
        (network.duration, "1e999s", "not a time: it must be finite"),
        *((network.size, text, "is not a size, such as 64MiB") for text in ("64Mbit", "64MB/s", "many", "-1MiB")),
        *((network.size, text, "is not a size of a buffer") for text in ("0B", "0.1B", "1e99GB")),
        *((network.workers, text, "is not a number of workers") for text in ("4,x", "4,,8", "1.5", "-4")),
        *((network.workers, text, "must be between 1 and 100,000") for text in ("0", "4,200000")),
        *((network.share, text, "is no share from 0 to below 1") for text in ("much", "-1%", "100%", "2x%", "2x")),
    ],
)
def test_what_has_no_value_is_said(parse: Callable[[str], object], text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


@pytest.mark.slow
@given(st.text(max_size=12))
def test_whatever_is_typed_is_a_value_or_one_line(text: str) -> None:
    for parse in (network.bandwidth, network.duration, network.size, network.workers, network.share):
        try:
            parse(text)
        except ValueError as error:
            assert "\n" not in str(error).replace(text, "")
