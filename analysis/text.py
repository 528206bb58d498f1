"""Numbers, names and lists of names as text: what tables, figures and reports write them with.

Any number, three digits of one, shares as percent, bytes, seconds, rates. What may be unknown is "" then.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from scaling_study.stats.spread import three_digits

LONGEST = 150  # bytes of a file's name; what stands before and after it has room in the 255 that there are
SMALLEST, LARGEST = 1e-5, 1e12  # numbers beyond are powers of ten


def file_name(text: str) -> str:
    """`org/model v2` -> `org-model-v2`: letters, digits, dots, dashes and underscores only, never empty or hidden.

    What is too long for a file system ends in a hash of the whole.
    """
    name = re.sub(r"[^\w.-]+", "-", text).strip("-.") or "model"
    if len(name.encode()) <= LONGEST:
        return name
    return f"{name.encode()[: LONGEST - 9].decode(errors='ignore')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def first_of(names: Sequence[str], most: int) -> tuple[str, ...]:
    """The first names, and after them `and 3 more` where there are others."""
    more = (f"and {len(names) - most} more",) if len(names) > most else ()
    return *names[:most], *more


def first_few(names: Sequence[str], most: int) -> str:
    """`a; b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def span(low: str, high: str) -> str:
    """`1.74 to 1.77`, or the one that both are."""
    return low if low == high else f"{low} to {high}"


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


def with_interval(
    value: Any, low: Any, high: Any, form: Callable[[Any], str] = number, ends: tuple[str, str] = ("?", "?")
) -> str:
    """`412 [398, 427]`; of an unknown value ""."""
    return "" if pd.isna(value) else form(value) + bracketed(low, high, form, ends)


def estimate_of(row: Mapping[Any, Any], name: str, form: Callable[[Any], str] = number) -> str:
    """`412 [398, 427]` of the columns `name`, `name_low` and `name_high` of a row; of an unknown value ""."""
    return with_interval(row[name], row[f"{name}_low"], row[f"{name}_high"], form)


def bracketed(low: Any, high: Any, form: Callable[[Any], str] = number, ends: tuple[str, str] = ("?", "?")) -> str:
    """` [398, 427]`, with `ends` in place of what is not known; "" where neither is."""
    if pd.isna(low) and pd.isna(high):
        return ""
    return f" [{ends[0] if pd.isna(low) else form(low)}, {ends[1] if pd.isna(high) else form(high)}]"


def shown(value: Any, form: str = "{}") -> str:
    """`0.50x` with `form="{:.2f}x"`; of an unknown value ""."""
    return "" if pd.isna(value) else form.format(value)


def percent(share: Any, places: int | None = None) -> str:
    """`7.2 %`, `43 %`, or with so many places; of an unknown share ""."""
    if pd.isna(share):
        return ""
    places = (0 if abs(share) >= 0.0995 else 1) if places is None else places
    return f"{100 * share:.{places}f} %".replace("-0 %", "0 %")


def change(ratio: float, low: Any, high: Any) -> str:
    """`+39 % [+35, +43]` of a ratio of 1.39."""
    return f"{100 * (ratio - 1):+.0f} %" + bracketed(low, high, lambda end: f"{100 * (end - 1):+.0f}")


def percents(shares: Iterable[float]) -> str:
    """`24 / 21 / 48 / 6.5 %`; "" of none."""
    return " / ".join(map(percent, shares)).replace(" % /", " /")


def two_figure_percentage(share: float, sign: str = "") -> str:
    """Never as a power of ten, and without its %: `0.23`, `6.9`, `121`; with `sign="+"` `+6.9`."""
    value = 100 * share
    return f"{value:{sign}.0f}" if abs(value) >= 9.95 else f"{value:{sign}.2g}"


def percentage_points(difference: Any) -> str:
    """`+4.1`, of two shares; of an unknown difference ""."""
    return "" if pd.isna(difference) else f"{100 * difference:+.1f}".replace("-0.0", "+0.0")


def megabytes(size: Any) -> str:
    """Bytes as `44.7`, in 1e6; of an unknown size ""."""
    return "" if pd.isna(size) else number(size / 1e6)


def binary_size(size: int) -> str:
    """Bytes as `1 KiB`, `256 MiB`, `1008 B`."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def scaled(value: float, units: Mapping[str, float]) -> str:
    """Three digits in the first of these units (the largest first) of which there is one."""
    unit = next((unit for unit, scale in units.items() if value >= 0.9995 * scale), list(units)[-1])
    return f"{three_digits(value / units[unit])} {unit}"


def duration(seconds: float) -> str:
    """`31.2 µs`, `4.5 ms`, `0.41 s`."""
    return scaled(seconds, {"s": 1.0, "ms": 1e-3, "µs": 1e-6})


def roughly(seconds: float) -> str:
    """`1 min`, `19 min`, `2.5 h`: never less than a minute."""
    return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{max(1, round(seconds / 60))} min"


def byte_rate(bytes_per_second: float) -> str:
    """`1.24 GB/s`, `57.3 MB/s`, `10 kB/s`."""
    return scaled(bytes_per_second, {"GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0})


def flop_rate(flops_per_second: float) -> str:
    """`38 GFLOP/s`, `1.2 TFLOP/s`."""
    units = {"PFLOP/s": 1e15, "TFLOP/s": 1e12, "GFLOP/s": 1e9, "MFLOP/s": 1e6, "FLOP/s": 1.0}
    return scaled(flops_per_second, units)


def giga(value: float) -> str:
    """`38.2`, in 1e9, without its unit."""
    return three_digits(value / 1e9)
