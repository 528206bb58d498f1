"""Each stage's share of the work: of the seconds it computed, and of the parameters it holds."""

from __future__ import annotations

import pandas as pd


def of_time(events: pd.DataFrame) -> dict[int, float]:
    """Stage -> its share of all seconds that any stage computed. `events` (events.COLUMNS) of one configuration."""
    return _shares((events.end_seconds - events.start_seconds).groupby(events.stage).sum())


def of_workers(events: pd.DataFrame) -> dict[int, float]:
    """Worker -> its share of them, all its stages together."""
    return _shares((events.end_seconds - events.start_seconds).groupby(events.worker).sum())


def of_parameters(stages: pd.DataFrame) -> dict[int, float]:
    """Stage -> its share of all parameters, those in several stages counted in each. `stages`: events.STAGE_COLUMNS."""
    return _shares(stages.groupby("stage").parameters.max())


def activations(stages: pd.DataFrame) -> dict[int, int]:
    """Worker -> the peak bytes of what autograd kept there, the most of all replicas; empty where nobody counted.

    Of a process that is all workers at once there is one number, and it stands at its first.
    """
    ranks = stages[stages.activations_bytes.notna()].groupby(["repeat", "rank"])
    held = pd.DataFrame({"worker": ranks.worker.min(), "bytes": ranks.activations_bytes.max()})
    return {int(str(worker)): int(size) for worker, size in held.groupby("worker").bytes.max().items()}


def _shares(sums: pd.Series) -> dict[int, float]:
    whole = float(sums.sum())
    return {int(str(index)): float(value) / whole for index, value in sums.items()} if whole else {}
