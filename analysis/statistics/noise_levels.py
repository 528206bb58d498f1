"""At which level what was measured in rounds is uncertain: steps, rounds, launches of one configuration, of processes.

Each is a relative standard deviation, estimated beside what is common to all at that level: rounds of a configuration
beside that round of the others, launches as scaling_study/stats/launches.py has them. What comes over all at once
cancels in a ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.frames import configurations as launches
from analysis.frames import trials
from analysis.frames.results import Results
from scaling_study.stats.launches import fitted, logs_by_launch, variance_left


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
    members: float = math.nan  # configurations that one set of processes measures, mean
    start_seconds: float = math.nan  # of a launch, until its first block
    round_seconds: float = math.nan

    @property
    def parts(self) -> dict[str, float]:
        """Shares of the variance of a ratio between two sets of processes, by their cause."""
        of_rounds = min(self.rounds**2 / self.rounds_a_launch, self.alone**2)
        parts = {"processes": self.processes**2, "rounds": of_rounds, "launches": self.alone**2 - of_rounds}
        known = {name: variance for name, variance in parts.items() if not math.isnan(variance)}
        total = sum(known.values())
        return {name: variance / total for name, variance in known.items()} if total else {}

    @property
    def cheapest_rounds(self) -> int:
        """How many rounds a launch should have for a ratio between two sets of processes to cost least: more of them
        narrow only what rounds do (Kalibera and Jones, ISMM 2013, section 5). 0 where that is not known."""
        # The processes' own variance has the rest of it.
        among_others = self.alone**2 * (1 - 1 / self.members) if self.members > 1 else 0.0
        of_launches = self.processes**2 + among_others - self.rounds**2 / self.rounds_a_launch
        if not (self.start_seconds > 0 and self.round_seconds > 0 and of_launches > 0 and self.rounds > 0):
            return 0
        return max(1, round(math.sqrt(self.start_seconds / self.round_seconds * self.rounds**2 / of_launches)))


def levels(results: Results) -> Levels | None:
    """The noise levels of a study; None where fewer than two launches were shared."""
    blocks, shared = results.details.blocks, [row for row in results.rows if launches.launches_names(row)]
    count = len({name.partition(".")[0] for row in shared for name in launches.logs(row)})  # 3/0.4 is of launch 3 too
    if blocks.empty or count < 2:
        return None
    known = [spread for row in shared if (spread := launches.spread_of(row)) is not None]
    alone = [spread.variance for spread in known if spread.freedom]
    # Of each set of processes that of all, or its own where that is wider.
    processes = [spread.processes for spread in known if spread.processes_freedom]
    start_seconds, round_seconds = _costs(results)
    inner = blocks[blocks.steps > 1]
    of_all = fitted(logs_by_launch([launches.logs(row) for row in shared]))[1]
    return Levels(
        steps=math.sqrt(np.average(inner.step_variance, weights=inner.steps - 1)) if len(inner) else math.nan,
        rounds=math.sqrt(_between_rounds(blocks)),
        alone=math.sqrt(np.mean(alone)) if alone else math.nan,
        processes=math.sqrt(min(processes)) if processes else math.nan,
        together=float(np.nanstd(of_all, ddof=1)),
        rounds_a_launch=float(blocks.groupby(["configuration", "repeat"], observed=True).size().mean()),
        launches=count,
        members=float(np.mean([spread.members for spread in known])) if known else math.nan,
        start_seconds=start_seconds,
        round_seconds=round_seconds,
    )


def _costs(results: Results) -> tuple[float, float]:
    """Seconds from the start of a launch to its first block, and of a round: medians; nan where they are not known."""
    blocks = results.details.blocks
    blocks = blocks[blocks.together.str.endswith("/0")]  # a later batch of the launch starts when this one is over
    began = trials.began(results.trials)
    seconds = began.dt.as_unit("s").astype("int64").where(began.notna())
    who = results.trials[["configuration", "repeat"]].assign(began=seconds)
    blocks = blocks.merge(who, on=["configuration", "repeat"], how="left")
    begins = blocks.groupby(["together", "round"])["at"].min()
    starts = begins.groupby("together").min() - blocks.groupby("together").began.min()
    return float(starts.median()), float(begins.groupby("together").diff().median())


def _between_rounds(blocks: pd.DataFrame) -> float:
    """Variance of a block beside what is common to its round, pooled over all launches."""
    squares = freedoms = 0.0
    for _, ours in blocks.groupby("together"):
        logs = ours.pivot_table(index="configuration", columns="round", values="log_seconds").to_numpy(float)
        variances, freedom = variance_left(fitted(logs)[0])
        squares, freedoms = squares + float(variances @ freedom), freedoms + float(freedom.sum())
    return squares / freedoms if freedoms else math.nan
