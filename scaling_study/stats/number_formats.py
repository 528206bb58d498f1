"""Numbers as text, as far as the library writes some: the analysis has the others (analysis/text/number_formats.py)."""

from __future__ import annotations


def three_digits(value: float) -> str:
    """`4,840`, `31.2`, `0.0573`, `inf`."""
    return f"{float(f'{value:.3g}'):,.10g}"
