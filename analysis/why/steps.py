"""A configuration's mean step, phase by phase: what each phase is of the step, in every repeat, over all ranks.

Phases come from the instrumented window, which is not the timed one: waiting for the device at each edge disturbs, and
a machine is not equally fast for a minute. So phases are taken as shares of their own, instrumented step; the shares
of a repeat add up to 1, and as `samples_per_second` says how long a timed step is, to all of that. `disturbance` says
how much longer instrumented steps took: where it is large the shares are less sure.

In a pipeline a rank waits for other stages wherever it happens to stand: between its events, and behind the last one in
what comes next, as the update does with the norm of all gradients. `idle` is all of that, in no phase (idle.py).

Time is counted in worker-seconds a sample: workers / samples_per_second. Twice as many workers that are twice as fast
spend as many, whatever is held fixed: their loss of efficiency is what they spend more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.frames.cache import once
from analysis.frames.configurations import values
from analysis.frames.over_ranks import PHASES
from analysis.frames.ranks import PHASE_COLUMNS
from analysis.frames.results import Results
from analysis.frames.rounds import of_peers, samples_of_step
from analysis.frames.row_types import ConfigurationRow
from analysis.pipeline import shape
from analysis.pipeline.bubble import RANK, idle_seconds
from analysis.why.idle import apart, beyond_shortest
from scaling_study.frameworks import FRAMEWORKS

Vector = NDArray[np.float64]
DATA, FORWARD, BACKWARD, COMMUNICATION, MATCHMAKING, AVERAGING, OPTIMIZER, UNATTRIBUTED = range(len(PHASES))
COMPUTING = (FORWARD, BACKWARD)


@dataclass(frozen=True)
class Mean:
    """Over repeats. `shares`: (phases,) of the step, adding up to 1 - idle."""

    worker_seconds: float  # of a sample
    shares: Vector
    lag: float  # what ranks wait for the slowest in phases that wait for nobody, as a share of the step
    idle: float = 0.0  # share of the step in which stages wait for each other

    def spent(self, phase: int) -> float:
        """Worker-seconds of a sample in this phase."""
        return self.worker_seconds * float(self.shares[phase])


@dataclass(frozen=True)
class Steps:
    """One configuration, its repeats in their order; a share is 0 where a phase is not exposed."""

    row: ConfigurationRow  # of results.configurations
    rates: Vector  # (repeats,) samples a second
    shares: Vector  # (repeats, phases) of the step
    exposed: NDArray[np.bool_]  # (phases,) whether the framework shows it
    lags: Vector  # (repeats,) see Mean
    disturbance: float  # instrumented / timed step - 1
    idle: Vector | None = None  # (repeats,) of the step, see Mean; None: not a pipeline, or nothing says
    timed: bool = True  # False: `idle` is by phases alone, without a timeline

    @property
    def step_seconds(self) -> Vector:
        """(repeats,) of one optimiser step."""
        return np.asarray(samples_of_step(self.row) / self.rates, dtype=np.float64)

    def mean(self, without: int | None = None) -> Mean:
        """Over all repeats, or all but one."""
        kept = np.arange(len(self.rates)) != without
        workers = float(self.row["workers"])
        rate, lag = float(self.rates[kept].mean()), float(self.lags[kept].mean())
        idle = 0.0 if self.idle is None else float(self.idle[kept].mean())
        return Mean(workers / rate, self.shares[kept].mean(axis=0), lag, idle)


@dataclass(frozen=True)
class Waited:
    """What is known of a pipeline's waiting beside its phases; (ranks of all repeats,)."""

    seconds: Vector  # by the timeline; NaN without one
    rank: NDArray[np.int64]
    shared: bool  # whether stages share weights, whose gradients they add up under `communication`

    @property
    def timed(self) -> bool:
        return not np.isnan(self.seconds).any()


def communicates_in(row: ConfigurationRow) -> frozenset[int]:
    """The phases, beside communication, in which collectives of this configuration are under way; none of one worker.

    Forward is one of them where weights are gathered for it, or buffers synchronised. Of a framework that is not in the
    table all that could be. A pipeline's update is not among them: the norm that it reduces has 4 bytes, and what is
    waited in it for other stages is `idle`.
    """
    table = FRAMEWORKS.get(str(row["framework"]))
    if int(row["workers"]) == 1:
        return frozenset()
    if table is None:
        return frozenset((FORWARD, BACKWARD, OPTIMIZER))
    phases = {PHASES.index(name) for name in table.communicates_in} - ({OPTIMIZER} if table.cuts_model else set())
    synced = table.syncs(row["buffers"]) and row["buffers_bytes"] != 0
    return frozenset(phases | ({FORWARD} if _gathers(row) or synced else set()))


def _gathers(row: ConfigurationRow) -> bool:
    """Whether forward has to gather weights first: at ZeRO-3, whatever the framework does at other stages."""
    stage = row["zero_stage"]
    return not pd.isna(stage) and int(stage) == 3


def cut(row: ConfigurationRow) -> bool:
    """Whether its workers hold stages of one model, so that forward and backward are a stage's computing alone."""
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.cuts_model


def one_process(row: ConfigurationRow) -> bool:
    """Whether one process drives several workers: its phases are those of all of them, waiting included."""
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.one_process and int(row["workers"]) > 1


@once
def steps(results: Results) -> dict[str, Steps]:
    """Configuration -> its steps, of all whose phases were measured in every repeat that is ok."""
    good = results.trials.loc[results.trials.status == "ok", ["configuration", "repeat"]]
    ranks = results.details.ranks.merge(good)
    known = ranks[(ranks.instrumented_seconds > 0) & (ranks.step_seconds > 0)]
    known = known.sort_values(RANK, kind="stable")
    places = dict(known.groupby("configuration", sort=False).indices)
    numbers = known[["step_seconds", "instrumented_seconds", *PHASE_COLUMNS]].to_numpy(dtype=float)
    repeats, ranked = known["repeat"].to_numpy(), known["rank"].to_numpy()
    idle = idle_seconds(results.details.events).reindex(pd.MultiIndex.from_frame(known[RANK]))
    waited = np.asarray(idle, dtype=np.float64)
    stages = results.details.stages
    shared = set(stages.configuration[stages.shared_parameters > 0])
    steps_of = {}
    for row in results.rows:
        at = places.get(row["configuration"])
        if row["n"] and at is not None and len(seen := np.unique(repeats[at])) == row["n"]:
            if not (np.nansum(numbers[at, 2:], axis=1) > 0).all():
                continue  # phases that say nothing
            repeat = np.searchsorted(seen, repeats[at])
            pipeline = Waited(waited[at], ranked[at], row["configuration"] in shared) if cut(row) else None
            steps_of[str(row["configuration"])] = _steps(row, numbers[at], repeat, pipeline)
    return steps_of


def _steps(row: ConfigurationRow, numbers: Vector, repeat: NDArray[np.int64], waited: Waited | None) -> Steps:
    """`numbers`: (ranks of all repeats, 2 + phases) seconds; `repeat`: whose they are, from 0."""
    timed, instrumented, phases = numbers[:, 0], numbers[:, 1], numbers[:, 2:]
    exposed = np.asarray(~np.isnan(phases).all(axis=0))
    phases = np.nan_to_num(phases)
    says = waited is not None and (waited.timed or not one_process(row))
    phases, idle = _idle(row, phases, repeat, waited) if waited and says else (phases, np.zeros(len(phases)))
    count = int(repeat.max()) + 1
    each = np.bincount(repeat, minlength=count)
    summed = np.stack([np.bincount(repeat, column, count) for column in (*phases.T, idle)], axis=1)
    whole = summed.sum(axis=1)
    shares = summed / whole[:, None]
    return Steps(
        row, np.array(values(row)), shares[:, :-1], exposed, _lags(row, phases, repeat, whole / each),
        float(instrumented.mean() / timed.mean() - 1), shares[:, -1] if says else None,
        waited is None or waited.timed,
    )  # fmt: skip


def _idle(row: ConfigurationRow, phases: Vector, repeat: NDArray[np.int64], waited: Waited) -> tuple[Vector, Vector]:
    """The phases without what was waited in them for other stages, and that: (ranks of all repeats,) seconds.

    A rank waits between its events, in no phase, and behind them in whatever needs all stages first.
    """
    if one_process(row):
        return apart(phases, waited.seconds, ((FORWARD, BACKWARD),))
    needs_all = (COMMUNICATION, OPTIMIZER) if waited.shared else (OPTIMIZER,)
    places = (UNATTRIBUTED, *needs_all)
    if waited.timed:
        return apart(phases, waited.seconds, [(at,) for at in places])
    longer = beyond_shortest(phases[:, needs_all].sum(axis=1), repeat, waited.rank // shape.workers(row))
    return apart(phases, phases[:, UNATTRIBUTED] + longer, [(at,) for at in places])


def _lags(row: ConfigurationRow, phases: Vector, repeat: NDArray[np.int64], whole: Vector) -> Vector:
    """Of each repeat: the slowest rank's seconds in phases that wait for nobody, less the mean's, over the step."""
    # Stages are not alike: that is the cut, and no straggler. A slower peer gives fewer samples; the wait for the batch
    # that it is in is others' matchmaking or averaging.
    if cut(row) or int(row["workers"]) == 1 or of_peers(str(row["framework"])):
        return np.zeros(len(whole))
    alone = [phase for phase in (DATA, *COMPUTING, OPTIMIZER) if phase not in communicates_in(row)]
    own = phases[:, alone].sum(axis=1)
    slowest = np.full(len(whole), -np.inf)
    np.maximum.at(slowest, repeat, own)
    return (slowest - np.bincount(repeat, own, len(whole)) / np.bincount(repeat)) / whole
