"""Numbers and file names as text: what tables, figures and reports write them with."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

from scaling_study.stats.spread import three_digits

# File names from what users call their models.

LONGEST = 150  # bytes; what stands before and after it has room in the 255 of a file's name


def file_name(text: str) -> str:
    """`org/model v2` -> `org-model-v2`: letters, digits, dots, dashes and underscores only, never empty or hidden.

    What is too long for a file system ends in a hash of the whole.
    """
    name = re.sub(r"[^\w.-]+", "-", text).strip("-.") or "model"
    if len(name.encode()) <= LONGEST:
        return name
    return f"{name.encode()[: LONGEST - 9].decode(errors='ignore')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# Numbers as text: what tables, figures and reports write them with.
#
# Any number, three digits of one, shares as percent, bytes, seconds, rates. What may be unknown is "" then.

SMALLEST, LARGEST = 1e-5, 1e12  # numbers beyond are powers of ten


def number(value: float, half: float | None = None) -> str:
    """`4,657`, `71.2`, `1.62`, `0.0021`, with `± half` to as many places."""
    if 0 < abs(value) < SMALLEST or abs(value) >= LARGEST:
        return f"{value:.1e}" + ("" if half is None else f" ± {half:.1e}")
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    if 0 < abs(value) < (0.1 if half is None else 0.01):  # two figures: never "0.00" of something
        places = 1 - math.floor(math.log10(abs(value)))
    while half and half < 0.5 / 10**places and places < 4:  # never "± 0" of something
        places += 1
    return f"{value:,.{places}f}" + ("" if half is None else f" ± {half:,.{places}f}")


# --- shares ---


def percent(share: float) -> str:
    """`7.2 %`, `43 %`."""
    return f"{_percentage(share)} %"


def percents(shares: Iterable[float]) -> str:
    """`24 / 21 / 48 / 6.5 %`; "" of none."""
    numbers = " / ".join(_percentage(share) for share in shares)
    return f"{numbers} %" if numbers else ""


def _percentage(share: float) -> str:
    return f"{100 * share:.0f}" if abs(share) >= 0.0995 else f"{100 * share:.1f}"


def two_figure_percentage(share: float, sign: str = "") -> str:
    """Never as a power of ten, and without its %: `0.23`, `6.9`, `121`; with `sign="+"` `+6.9`."""
    value = 100 * share
    return f"{value:{sign}.0f}" if abs(value) >= 9.95 else f"{value:{sign}.2g}"


def whole_percent(share: Any) -> str:
    """`31 %`; of an unknown share ""."""
    return "" if pd.isna(share) else f"{100 * share:.0f} %".replace("-0 %", "0 %")


def percent_to_a_tenth(share: Any) -> str:
    """`31.2 %`; of an unknown share ""."""
    return "" if pd.isna(share) else f"{100 * share:.1f} %"


def percentage_points(difference: Any) -> str:
    """`+4.1`, of two shares; of an unknown difference ""."""
    return "" if pd.isna(difference) else f"{100 * difference:+.1f}".replace("-0.0", "+0.0")


# --- bytes, seconds and rates ---


def megabytes(size: Any) -> str:
    """Bytes as `44.7`, in 1e6; of an unknown size ""."""
    return "" if pd.isna(size) else number(size / 1e6)


def binary_size(size: int) -> str:
    """Bytes as `1 KiB`, `256 MiB`, `1008 B`."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def milliseconds(seconds: float) -> str:
    """`12.3`, without its unit."""
    return number(1000 * seconds)


def duration(seconds: float) -> str:
    """`31.2 µs`, `4.5 ms`, `0.41 s`."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def byte_rate(bytes_per_second: float) -> str:
    """`1.24 GB/s`, `57.3 MB/s`, `10 kB/s`."""
    for unit, scale in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_second >= 0.9995 * scale:
            return f"{bytes_per_second / scale:.3g} {unit}"
    return f"{bytes_per_second:.3g} B/s"


def flop_rate(flops_per_second: float) -> str:
    """`38 GFLOP/s`, `1.2 TFLOP/s`."""
    for scale, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if flops_per_second >= scale:
            return f"{three_digits(flops_per_second / scale)} {unit}FLOP/s"
    return f"{three_digits(flops_per_second)} FLOP/s"


def giga(value: float) -> str:
    """`38.2`, in 1e9, without its unit."""
    return three_digits(value / 1e9)
