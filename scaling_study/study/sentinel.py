"""The sentinel: one configuration that is run again and again through a sweep, so that the machine itself is measured.

    planned     a b c d e f ...                      every configuration in its rounds (plan.py)
    with it     S a b c d e S f g h i j S ... S      the sentinel at equal distances, first and last

Its repeats are ordinary trials with ordinary ids. What they differ by is the machine's noise, and what they differ by
from the first to the last is its drift (analysis/findings/noise.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

EVERY = 10  # other trials for one more repeat: a sweep takes at most a tenth longer
MOST = 100  # repeats in all; more of them say nothing new
T = TypeVar("T")


def repeats(planned: int, others: int) -> int:
    """How many repeats it gets in all, of which `planned` anyway, among so many trials of other configurations."""
    return max(planned, min(planned + others // EVERY, MOST))


def spread(others: Sequence[T], sentinel: Sequence[T]) -> Iterator[T]:
    """Both in their own order, the runs of the sentinel at equal distances: the first begins, the last ends."""
    done = 0
    for index, run in enumerate(sentinel):
        due = round(index * len(others) / (len(sentinel) - 1)) if len(sentinel) > 1 else 0
        yield from others[done:due]
        yield run
        done = due
    yield from others[done:]
