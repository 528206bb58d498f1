"""Numbers as text."""

from __future__ import annotations

import math

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
