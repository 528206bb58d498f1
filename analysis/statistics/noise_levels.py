"""At which level what was measured in rounds is uncertain: steps, rounds, launches of one configuration, of processes.

Each is a relative standard deviation, estimated beside what is common to all at that level: rounds of a configuration
beside that round of the others, launches as scaling_study/stats/launches.py has them. What comes over all at once
cancels in a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames import launches
from analysis.frames.results import Results
from scaling_study.stats.launches import fitted, table, variance_left


@dataclass(frozen=True)
class Levels:
    """Relative standard deviations; nan where they are not known."""

    steps: float  # between steps of a block
    rounds: float  # between a configuration's blocks
    alone: float  # between launches, of a configuration by itself: the mean of its rounds
    processes: float  # between launches, of all that one set of processes measures
    together: float  # between launches, of all that were alive at once: cancels
    rounds_a_launch: float
    launches: int

    @property
    def parts(self) -> dict[str, float]:
        """What the variance of a ratio between two sets of processes consists of, as shares."""
        of_rounds = min(self.rounds**2 / self.rounds_a_launch, self.alone**2)
        parts = {"processes": self.processes**2, "rounds": of_rounds, "launches": self.alone**2 - of_rounds}
        known = {name: variance for name, variance in parts.items() if not math.isnan(variance)}
        total = sum(known.values())
        return {name: variance / total for name, variance in known.items()} if total else {}


def levels(results: Results) -> Levels | None:
    """Of a study; None where fewer than two launches were shared."""
    blocks, shared = results.details.blocks, [row for row in results.rows if launches.names(row)]
    count = len({name for row in shared for name in launches.logs(row)})
    if blocks.empty or count < 2:
        return None
    known = [spread for row in shared if (spread := launches.spread_of(row)) is not None]
    alone = [spread.variance for spread in known if spread.freedom]
    processes = [spread.processes for spread in known if spread.processes_freedom]
    return Levels(
        steps=_root(np.average(inner.step_variance, weights=inner.steps - 1))
        if len(inner := blocks[blocks.steps > 1]) else math.nan,
        rounds=_root(_between_rounds(blocks)),
        alone=_root(np.mean(alone)) if alone else math.nan,
        processes=_root(processes[0]) if processes else math.nan,
        together=_of_all(shared),
        rounds_a_launch=float(blocks.groupby(["configuration", "repeat"], observed=True).size().mean()),
        launches=count,
    )  # fmt: skip


def _between_rounds(blocks: pd.DataFrame) -> float:
    """Variance of a block beside what is common to its round, pooled over all launches."""
    squares = freedoms = 0.0
    for _, ours in blocks.groupby("together"):
        logs = ours.pivot_table(index="configuration", columns="round", values="log_seconds").to_numpy(float)
        variances, freedom = variance_left(fitted(logs)[0])
        squares, freedoms = squares + float(variances @ freedom), freedoms + float(freedom.sum())
    return squares / freedoms if freedoms else math.nan


def _of_all(rows: Sequence[launches.Row]) -> float:
    return float(np.nanstd(fitted(table([launches.logs(row) for row in rows]))[1], ddof=1))


def _root(variance: float | np.floating[Any]) -> float:
    return math.sqrt(float(variance))
