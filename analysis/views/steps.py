"""Phases of a configuration's mean step, without the waits of a pipeline, and what its computing became."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.findings import grouped
from analysis.frames.configurations import BATCH_KEYS, KEYS, values, values_of
from analysis.frames.details import PHASE_COLUMNS
from analysis.frames.measured import PHASES, of_peers, samples_of_step
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow
from analysis.statistics.bubble import RANK, idle_seconds
from analysis.views.pipelines import is_cut, shape_of
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.stats.network import Point, fit
from scaling_study.study import defaults

# A configuration's mean step, phase by phase: what each phase is of the step, in every repeat, over all ranks.
#
# Phases come from the instrumented window, which is not the timed one: waiting for the device at each edge disturbs,
# and a machine is not equally fast for a minute. So phases are taken as shares of their own, instrumented step; the
# shares of a repeat add up to 1, and as `samples_per_second` says how long a timed step is, to all of that.
# `disturbance` says how much longer instrumented steps took: where it is large the shares are less sure.
#
# In a pipeline a rank waits for other stages wherever it happens to stand: between its events, and behind the last one
# in what comes next, as the update does with the norm of all gradients. `idle` is all of that, in no phase.
#
# Time is counted in worker-seconds a sample: workers / samples_per_second. Twice as many workers that are twice as fast
# spend as many, whatever is held fixed: their loss of efficiency is what they spend more.

Vector = NDArray[np.float64]
DATA, FORWARD, BACKWARD, COMMUNICATION, MATCHMAKING, AVERAGING, OPTIMIZER, UNATTRIBUTED = range(len(PHASES))
COMPUTING = (FORWARD, BACKWARD)


@dataclass(frozen=True)
class MeanStep:
    """Over repeats. `shares`: (phases,) of the step, adding up to 1 - idle."""

    worker_seconds: float  # of a sample
    shares: Vector
    lag: float  # what ranks wait for the slowest in phases that wait for nobody, as a share of the step
    idle: float = 0.0  # share of the step in which stages wait for each other

    def spent(self, phase: int) -> float:
        """Worker-seconds of a sample in this phase."""
        return self.worker_seconds * float(self.shares[phase])


@dataclass(frozen=True)
class MeasuredSteps:
    """One configuration, its repeats in their order; a share is 0 where a phase is not exposed."""

    row: ConfigurationRow  # of results.configurations
    rates: Vector  # (repeats,) samples a second
    shares: Vector  # (repeats, phases) of the step
    exposed: NDArray[np.bool_]  # (phases,) whether the framework shows it
    lags: Vector  # (repeats,) see Mean
    disturbance: float  # instrumented / timed step - 1
    idle: Vector | None = None  # (repeats,) of the step, see Mean; None: not a pipeline, or nothing says
    timed: bool = True  # False: `idle` is by phases alone, without a timeline
    looked_at: int = 0  # repeats whose phases were measured, where they are fewer than all

    @property
    def step_seconds(self) -> Vector:
        """(repeats,) of one optimiser step."""
        return np.asarray(samples_of_step(self.row) / self.rates, dtype=np.float64)

    def mean(self, without: int | None = None) -> MeanStep:
        """Over all repeats, or all but one."""
        kept = np.arange(len(self.rates)) != without
        workers = float(self.row["workers"])
        rate, lag = float(self.rates[kept].mean()), float(self.lags[kept].mean())
        idle = 0.0 if self.idle is None else float(self.idle[kept].mean())
        return MeanStep(workers / rate, self.shares[kept].mean(axis=0), lag, idle)


@dataclass(frozen=True)
class Waited:
    """Waiting of a pipeline's ranks that its timeline shows; arrays are (ranks of all repeats,)."""

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
    gathers: bool = not pd.isna(row["zero_stage"]) and int(row["zero_stage"]) == 3  # whatever it does at other stages
    synced = table.syncs(row["buffers"]) and row["buffers_bytes"] != 0
    inside = table.cuts_model and any(not pd.isna(row[key]) for key in ("tensor_parallel", "shard_group"))  # of a stage
    return frozenset(phases | ({FORWARD} if gathers or synced else set()) | ({FORWARD, BACKWARD} if inside else set()))


def one_process(row: ConfigurationRow) -> bool:
    """True where one process drives several workers: its phases are those of all of them, waiting included."""
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.one_process and int(row["workers"]) > 1


@once
def steps(results: Results) -> dict[str, MeasuredSteps]:
    """Configuration -> its steps, of all whose phases were measured in every repeat that is ok.

    In rounds one launch is enough: later ones are not looked at, and its shares stand for theirs.
    """
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
        if row["n"] and at is not None and (len(seen := np.unique(repeats[at])) == row["n"] or row["warm"] is True):
            if not (np.nansum(numbers[at, 2:], axis=1) > 0).all():
                continue  # phases that say nothing
            repeat = np.searchsorted(seen, repeats[at])
            pipeline = Waited(waited[at], ranked[at], row["configuration"] in shared) if is_cut(row) else None
            steps_of[str(row["configuration"])] = _steps(row, numbers[at], repeat, pipeline)
    return steps_of


def _steps(row: ConfigurationRow, numbers: Vector, repeat: NDArray[np.int64], waited: Waited | None) -> MeasuredSteps:
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
    rates = np.array(values(row))

    def of_all(looked_at: Vector) -> Vector:
        return looked_at if count == len(rates) else np.repeat(looked_at.mean(axis=0, keepdims=True), len(rates), 0)

    shares = of_all(summed / whole[:, None])
    return MeasuredSteps(
        row,
        rates,
        shares[:, :-1],
        exposed,
        of_all(_lags(row, phases, repeat, whole / each)),
        float(instrumented.mean() / timed.mean() - 1),
        shares[:, -1] if says else None,
        waited is None or waited.timed,
        0 if count == len(rates) else count,
    )


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
    pipeline = waited.rank // (int(row["workers"]) // shape_of(row).replicas)
    longer = beyond_shortest(phases[:, needs_all].sum(axis=1), repeat, pipeline)
    return apart(phases, phases[:, UNATTRIBUTED] + longer, [(at,) for at in places])


def _lags(row: ConfigurationRow, phases: Vector, repeat: NDArray[np.int64], whole: Vector) -> Vector:
    """(repeats,) the slowest rank's seconds in phases that wait for nobody, less the mean's, over the step."""
    # Stages are not alike: that is the cut, and no straggler. A slower peer gives fewer samples; the wait for the batch
    # that it is in is others' matchmaking or averaging.
    if is_cut(row) or int(row["workers"]) == 1 or of_peers(str(row["framework"])):
        return np.zeros(len(whole))
    alone = [phase for phase in (DATA, *COMPUTING, OPTIMIZER) if phase not in communicates_in(row)]
    own = phases[:, alone].sum(axis=1)
    slowest = np.full(len(whole), -np.inf)
    np.maximum.at(slowest, repeat, own)
    return (slowest - np.bincount(repeat, own, len(whole)) / np.bincount(repeat)) / whole


# Waiting of a pipeline's ranks for other stages, taken out of the phases in which they stood meanwhile.
#
#     worker 0   F0 F1 .  .  B0 B1 norm update        the norm of all gradients needs every stage's,
#     worker 1   .  F0 F1 B0 B1 norm........ update   so what worker 1 waits at the end lies in its update
#
# Where stages share weights, their gradients are added up before that, under `communication`: then it lies there.
#
# How long, the timeline says: as long as none of a rank's own events was under way, from the first event of its
# pipeline to the last (analysis/statistics/bubble.py). Without one, all that no phase covers is idle, and what a rank's
# update takes longer than the shortest of its pipeline: that one was the last to come and waited for nobody. A rank
# that has more to update than the others looks the same.

Places = Sequence[tuple[int, ...]]


def apart(phases: Vector, waited: Vector, places: Places) -> tuple[Vector, Vector]:
    """`phases` (ranks, phases) less what was waited in them, and that (ranks,); both in seconds.

    Taken from these places, in their order, as far as there is something; from phases of one place in proportion.
    """
    left, kept = waited.clip(min=0.0), phases.copy()
    for place in places:
        there = kept[:, place].sum(axis=1)
        taken = np.minimum(left, there.clip(min=0.0))
        kept[:, place] *= (1.0 - np.divide(taken, there, out=np.zeros_like(taken), where=there > 0))[:, None]
        left = left - taken
    return kept, phases.sum(axis=1) - kept.sum(axis=1)


def beyond_shortest(update: Vector, repeat: NDArray[np.int64], replica: NDArray[np.int64]) -> Vector:
    """(ranks,) seconds of each rank's update beyond the shortest of its pipeline in the same repeat."""
    _, group = np.unique(np.stack([repeat, replica]), axis=1, return_inverse=True)
    pipeline = group.ravel()
    shortest = np.full(int(pipeline.max()) + 1, np.inf)
    np.minimum.at(shortest, pipeline, update)
    return np.asarray(update - shortest[pipeline], dtype=np.float64)


# What the computing itself became: slower beside other workers, and what of it no size of a batch changes.
#
# **Slower**: forward of a framework whose collectives all run later does nothing but compute. Its seconds over those of
# the baseline's forward say how much slower the same kernels run where several workers share a memory, caches and a
# clock. A framework that communicates in forward borrows this from those that do not, with the same model, batch and
# workers in the same study.
#
# **Fixed**: forward and backward of several batch sizes lie on a line, seconds = fixed + per sample x batch. `fixed` is
# launching kernels and whatever else a batch of none would cost: with small batches it is most of a step.

Row = ConfigurationRow
LEAST_RANGE = 1.5  # of batch sizes, largest over smallest: below, a line says nothing of where it begins
# Keys that decide how fast the same kernels run; the framework and what it sends do not.
SURROUNDINGS = (
    "model",
    "workers",
    "hosts",
    "batch_per_worker",
    "device",
    "cores_per_worker",
    "accumulation",
    *(key for key in KEYS if key in defaults.KEYS),
    "compile_scope",
    "gelu",
    "vocabulary",
    "cross_entropy",
    "checkpoint",
    "classes",
    "resident_batches",
    "image_size",
    "image_width",
    "freeze",
    "sequence_length",
    "padding",
    "data",
)


def clean(row: Row) -> bool:
    """True where its forward only computes."""
    return not (is_cut(row) or one_process(row) or FORWARD in communicates_in(row))


def slower(ours: MeanStep, base: MeanStep) -> float | None:
    """How many times as long forward takes of a sample as the baseline's does; None where one has none."""
    before, after = base.spent(FORWARD), ours.spent(FORWARD)
    return after / before if before > 0 and after > 0 else None


def slower_in(pairs: Iterable[tuple[MeasuredSteps, MeasuredSteps]]) -> dict[tuple[Any, ...], float]:
    """Values of SURROUNDINGS -> how many times as long forward takes there where it only computes, as a geometric mean:
    what a framework that communicates in it borrows. `pairs`: configurations of several workers and their baselines."""
    known = [
        (values_of(ours.row, SURROUNDINGS), factor)
        for ours, base in pairs
        if clean(ours.row) and clean(base.row) and (factor := slower(ours.mean(), base.mean()))
    ]
    alike = grouped(known, lambda pair: pair[0])
    return {where: math.exp(sum(math.log(each) for _, each in of) / len(of)) for where, of in alike.items()}


@dataclass(frozen=True)
class Fixed:
    """Seconds of a step's forward and backward (or of forward, where backward communicates) that no batch size changes.

    `low` and `high` are their 95 % interval, None of fewer than 3 sizes; `batches` the sizes, of a worker.
    """

    seconds: float
    low: float | None
    high: float | None
    batches: tuple[int, ...]
    phases: tuple[int, ...]


@once
def lines(results: Results) -> dict[str, Fixed]:
    """Configuration -> what is fixed of its computing, for all that were measured with several batch sizes."""
    alike = tuple(key for key in KEYS if key not in BATCH_KEYS)
    of_steps = [one for one in steps(results).values() if not of_peers(str(one.row["framework"])) and clean(one.row)]
    families = grouped(of_steps, lambda one: values_of(one.row, alike)).values()  # a round of peers has many batches
    found = ((family, _line(family)) for family in families)
    return {str(one.row["configuration"]): line for family, line in found if line for one in family}


def _line(family: Sequence[MeasuredSteps]) -> Fixed | None:
    sizes = {int(timed.row["batch_per_worker"]): timed for timed in family}
    if len(sizes) < 2 or max(sizes) < LEAST_RANGE * min(sizes):
        return None
    phases = tuple(phase for phase in COMPUTING if phase not in communicates_in(family[0].row))
    points = [_point(size, sizes[size], phases) for size in sorted(sizes)]
    if any(point.seconds <= 0 for point in points):
        return None
    line = fit(points)
    return Fixed(line.alpha_seconds, line.alpha_low, line.alpha_high, tuple(sorted(sizes)), phases)


def _point(size: int, timed: MeasuredSteps, phases: Sequence[int]) -> Point:
    """Seconds of these phases in one step."""
    per_step = timed.step_seconds * timed.shares[:, list(phases)].sum(axis=1)
    error = float(np.std(per_step, ddof=1)) / math.sqrt(len(per_step)) if len(per_step) > 1 else None
    return Point(size, float(per_step.mean()), error)


def untimed(results: Results) -> list[str]:
    """A sentence where bubbles of pipelines are estimated without a timeline; else none."""
    count = sum(not step.timed and step.idle is not None for step in steps(results).values())
    if not count:
        return []
    return [
        f"Without a timeline: {count} pipeline{'s' * (count != 1)}. The bubble there is what no phase covers, and what "
        "a rank's update took longer than the shortest of its pipeline, which may be waiting or a larger update."
    ]
