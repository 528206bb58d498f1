"""Throughput of a trial: the samples of all its ranks over the slowest rank's window, never a mean of rates."""

from __future__ import annotations

from collections.abc import Iterable


def samples_per_second(samples: Iterable[float], window_seconds: Iterable[float]) -> float:
    """Over all workers, from what each rank saw and how long its timed window took.

    Raises ValueError without ranks, ZeroDivisionError for a window of no time.
    """
    return sum(samples) / max(window_seconds)
