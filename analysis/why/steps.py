"""A configuration's mean step, phase by phase: what each phase is of the step, in every repeat, over all ranks.

Phases come from the instrumented window, which is not the timed one: waiting for the device at each edge disturbs, and
a machine is not equally fast for a minute. So phases are taken as shares of their own, instrumented step; the shares
of a repeat add up to 1, and as `samples_per_second` says how long a timed step is, to all of that. `disturbance` says
how much longer instrumented steps took: where it is large the shares are less sure.

Time is counted in worker-seconds a sample: workers / samples_per_second. Twice as many workers that are twice as fast
spend as many, whatever is held fixed: their loss of efficiency is what they spend more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.configurations import values
from analysis.once import once
from analysis.over_ranks import PHASES
from analysis.results import Results
from analysis.why.ranks import PHASE_COLUMNS
from scaling_study.frameworks import FRAMEWORKS

Vector = NDArray[np.float64]
DATA, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, UNATTRIBUTED = range(len(PHASES))
COMPUTING = (FORWARD, BACKWARD)


@dataclass(frozen=True)
class Mean:
    """Over repeats. `shares`: (phases,) of the step, adding up to 1."""

    worker_seconds: float  # of a sample
    shares: Vector
    lag: float  # what ranks wait for the slowest in phases that wait for nobody, as a share of the step

    def spent(self, phase: int) -> float:
        """Worker-seconds of a sample in this phase."""
        return self.worker_seconds * float(self.shares[phase])


@dataclass(frozen=True)
class Steps:
    """One configuration, its repeats in their order; a share is 0 where a phase is not exposed."""

    row: Mapping[Any, Any]  # of results.configurations
    rates: Vector  # (repeats,) samples a second
    shares: Vector  # (repeats, phases) of the step
    exposed: NDArray[np.bool_]  # (phases,) whether the framework shows it
    lags: Vector  # (repeats,) see Mean
    disturbance: float  # instrumented / timed step - 1

    @property
    def step_seconds(self) -> Vector:
        """(repeats,) of one optimiser step."""
        return np.asarray(float(self.row["global_batch"]) / self.rates, dtype=np.float64)

    def mean(self, without: int | None = None) -> Mean:
        """Over all repeats, or all but one."""
        kept = np.arange(len(self.rates)) != without
        workers = float(self.row["workers"])
        rate, lag = float(self.rates[kept].mean()), float(self.lags[kept].mean())
        return Mean(workers / rate, self.shares[kept].mean(axis=0), lag)


def communicates_in(row: Mapping[Any, Any]) -> frozenset[int]:
    """The phases, beside communication, in which collectives of this configuration are under way; none of one worker.

    Of a framework that is not in the table all that could be.
    """
    table = FRAMEWORKS.get(str(row["framework"]))
    if int(row["workers"]) == 1:
        return frozenset()
    if table is None:
        return frozenset((FORWARD, BACKWARD, OPTIMIZER))
    said = {PHASES.index(name) for name in table.communicates_in}
    return frozenset(said | ({FORWARD} if _gathers(row) else set()))


def _gathers(row: Mapping[Any, Any]) -> bool:
    """Whether forward has to gather weights first: at ZeRO-3, whatever the framework does at other stages."""
    stage = row["zero_stage"]
    return not pd.isna(stage) and int(stage) == 3


def cut(row: Mapping[Any, Any]) -> bool:
    """Whether its workers hold stages of one model, so that forward and backward are a stage's computing alone."""
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.cuts_model


def one_process(row: Mapping[Any, Any]) -> bool:
    """Whether one process drives several workers: its phases are those of all of them, waiting included."""
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.one_process and int(row["workers"]) > 1


@once
def steps(results: Results) -> dict[str, Steps]:
    """Configuration -> its steps, of all whose phases were measured in every repeat that is ok."""
    good = results.trials.loc[results.trials.status == "ok", ["configuration", "repeat"]]
    ranks = results.details.ranks.merge(good)
    known = ranks[(ranks.instrumented_seconds > 0) & (ranks.step_seconds > 0)]
    known = known.sort_values(["configuration", "repeat", "rank"], kind="stable")
    places = dict(known.groupby("configuration", sort=False).indices)
    numbers = known[["step_seconds", "instrumented_seconds", *PHASE_COLUMNS]].to_numpy(dtype=float)
    repeats = known["repeat"].to_numpy()
    made = {}
    for row in results.rows:
        at = places.get(row["configuration"])
        if row["n"] and at is not None and len(found := np.unique(repeats[at])) == row["n"]:
            if not (np.nansum(numbers[at, 2:], axis=1) > 0).all():
                continue  # phases that say nothing
            made[str(row["configuration"])] = _steps(row, numbers[at], np.searchsorted(found, repeats[at]))
    return made


def _steps(row: Mapping[Any, Any], numbers: Vector, repeat: NDArray[np.int64]) -> Steps:
    """`numbers`: (ranks of all repeats, 2 + phases) seconds; `repeat`: whose they are, from 0."""
    timed, instrumented, phases = numbers[:, 0], numbers[:, 1], numbers[:, 2:]
    exposed = np.asarray(~np.isnan(phases).all(axis=0))
    phases = np.nan_to_num(phases)
    count = int(repeat.max()) + 1
    each = np.bincount(repeat, minlength=count)
    summed = np.stack([np.bincount(repeat, column, count) for column in phases.T], axis=1)
    return Steps(
        row, np.array(values(row)), summed / summed.sum(axis=1, keepdims=True), exposed,
        _lags(row, phases, repeat, summed.sum(axis=1) / each), float(instrumented.mean() / timed.mean() - 1),
    )  # fmt: skip


def _lags(row: Mapping[Any, Any], phases: Vector, repeat: NDArray[np.int64], whole: Vector) -> Vector:
    """Of each repeat: the slowest rank's seconds in phases that wait for nobody, less the mean's, over the step."""
    if cut(row) or int(row["workers"]) == 1:  # stages are not alike: that is the cut, and no straggler
        return np.zeros(len(whole))
    alone = [phase for phase in (DATA, *COMPUTING, OPTIMIZER) if phase not in communicates_in(row)]
    own = phases[:, alone].sum(axis=1)
    slowest = np.full(len(whole), -np.inf)
    np.maximum.at(slowest, repeat, own)
    return (slowest - np.bincount(repeat, own, len(whole)) / np.bincount(repeat)) / whole
