"""Which configurations of a model do the same work, so that the faster of two is the better one.

A sample of 224 pixels is not one of 32, a sentence of 128 tokens not one of 32, generated data need no loader, and a
frozen part has no backward. What was measured in rounds, beside others, was measured otherwise than what was alone.
Precision is not among these: another precision is another way to the same result, and what it costs is parity's to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from analysis.frames import series
from analysis.frames.baseline import values_of
from analysis.frames.row_types import ConfigurationRow

KEYS = ("image_size", "image_width", "freeze", "sequence_length", "data", "warm")
Row = TypeVar("Row", bound=ConfigurationRow)


def alike(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one model by their work; that of most configurations first."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(values_of(row, KEYS), []).append(row)
    return sorted(groups.values(), key=len, reverse=True)


def name(row: ConfigurationRow) -> str:
    """`224 px, real data`."""
    return ", ".join(series.words(row, KEYS))
