"""What a person types for a network: `25Gbit`, `3GB/s`, `5us`, `64MiB`, `4,8,512`. Nonsense is one line that says so.

Bits and bytes are told apart by what the field writes: Gbit, Gbps and Gb/s are bits, GB/s is bytes. Of `25gb` nobody
knows which it is.
"""

from __future__ import annotations

import math
import re

MOST_WORKERS = 100_000
NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(.*?)\s*")
DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
A_BIT = re.compile(r"([kKMGT]?)(?:bits?(?:/s|ps)?|bps|b/s)")
A_BYTE = re.compile(r"([KMGT]i|[kKMGT]?)B(?:/s|ps)?")


def bandwidth(text: str) -> float:
    """Bytes a second, from `25Gbit`, `100 Mbit/s`, `10Gbps`, `3GB/s`, `800MiB/s`. Raises ValueError, saying why."""
    value, unit = _parted(text, "a bandwidth", "25Gbit or 3GB/s")
    if bit := A_BIT.fullmatch(unit):
        value *= DECIMAL[bit[1]] / 8
    elif byte := A_BYTE.fullmatch(unit):
        value *= {**DECIMAL, **BINARY}[byte[1]]
    elif re.fullmatch(r"[kmgt]?b(ps|/s)?", unit, re.IGNORECASE):
        raise ValueError(f"{text} may be bits or bytes: write {value:g}{unit[0].upper()}bit or {value:g}"
                         f"{unit[0].upper()}B/s")  # fmt: skip
    else:
        raise ValueError(f"{text} is not a bandwidth, such as 25Gbit or 3GB/s")
    if not 0 < value < math.inf:
        raise ValueError(f"{text} is no bandwidth that a link could have: it must be above 0")
    return value


def duration(text: str) -> float:
    """Seconds, from `5us`, `0.1ms`, `2s`. Raises ValueError, saying why."""
    value, unit = _parted(text, "a time", "5us or 0.1ms")
    if unit not in SECONDS:
        raise ValueError(f"{text} is not a time, such as 5us or 0.1ms")
    if not math.isfinite(value):
        raise ValueError(f"{text} is no time that ends")
    return value * SECONDS[unit]


def size(text: str) -> int:
    """Bytes, from `64MiB`, `25MB`, `1000000`. Raises ValueError, saying why."""
    value, unit = _parted(text, "a size", "64MiB or 25MB")
    byte = A_BYTE.fullmatch(unit or "B")
    if not byte or unit.endswith(("/s", "ps")):
        raise ValueError(f"{text} is not a size, such as 64MiB or 25MB")
    whole = value * {**DECIMAL, **BINARY}[byte[1]]
    if not 1 <= whole < 2**63:
        raise ValueError(f"{text} is no size of a buffer: it must be at least 1 byte")
    return round(whole)


def workers(text: str) -> tuple[int, ...]:
    """Worker counts in ascending order, each once, from `4,8,64`. Raises ValueError, saying why."""
    counts = set()
    for word in text.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", word):
            raise ValueError(f"{word.strip() or 'nothing'!s} in {text!r} is not a number of workers, as in 4,8,64")
        count = int(word)
        if not 1 <= count <= MOST_WORKERS:
            raise ValueError(f"{count:,} workers: it must be between 1 and {MOST_WORKERS:,}")
        counts.add(count)
    return tuple(sorted(counts))


def _parted(text: str, what: str, such_as: str) -> tuple[float, str]:
    """(`25`, `Gbit`). Raises ValueError for what begins with no number."""
    match = NUMBER.fullmatch(text)
    if not match:
        raise ValueError(f"{text or 'nothing'} is not {what}, such as {such_as}")
    return float(match[1]), match[2]
