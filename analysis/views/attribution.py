"""Where each lost percent of efficiency went: parts that add up to the whole, what is not attributed among them.

    lost = 1 - efficiency = (ours - baseline) / ours       in worker-seconds of a sample (steps.py)
         = sum over phases of (ours - baseline) / ours     since phases add up to the step, on both sides

So each phase's growth is a part as it stands, as is that of a pipeline's idle time, which lies in no phase (idle.py).
Two more things are known:

    collectives that run under computing    what backward grew beyond what forward did, which only computes (kernels.py)
    the slowest rank                        of what the others wait, as much as it is behind in what waits for nobody

Both are taken out of the phase in which they were measured, so the sum stays. A part below zero is a gain. Where
neither forward nor a neighbour's says what computing became, its growth is `mixed` and no more is claimed.

Waiting for whichever rank happens to be slow in one step, and for the same rank in the next, look alike in a mean:
`stragglers` are ranks that were behind over the whole window, and so the least that waiting for ranks can be.

Intervals (95 %) are by jackknife over the repeats of both sides, with Welch's degrees of freedom: the mean of a linear
quantity gets exactly its Student interval (Efron and Stein, Ann. Stat. 9, 1981).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.frames.configurations import known
from analysis.frames.measured import of_peers
from analysis.frames.results import Results, once
from analysis.frames.row_types import ConfigurationRow
from analysis.views import steps
from analysis.views.steps import (
    AVERAGING,
    COMMUNICATION,
    COMPUTING,
    DATA,
    MATCHMAKING,
    OPTIMIZER,
    UNATTRIBUTED,
    Fixed,
    Mean,
    Neighbours,
    Steps,
    Vector,
)
from scaling_study.stats.intervals import FEWEST_REPEATS, welch_satterthwaite

PARTS = (
    *("input", "fixed", "kernels", "optimizer", "exposed", "matchmaking", "averaging"),
    *("within", "stragglers", "bubble", "mixed", "unattributed"),
)
INPUT, FIXED, KERNELS, UPDATE, EXPOSED, FOUND, AVERAGED, WITHIN, STRAGGLERS, BUBBLE, MIXED, UNKNOWN = range(len(PARTS))
NAMES = dict(zip(PARTS, (
    "input", "launch and other fixed cost", "slower kernels", "optimizer", "exposed communication",
    "matchmaking of peers", "averaging of peers",
    "communication under computing", "stragglers", "pipeline bubble", "kernels or communication", "not attributed",
), strict=True))  # fmt: skip
WAITING = (EXPOSED, WITHIN, MIXED)  # where waiting for the slowest rank was measured
DISTURBED = 0.1  # of a step: instrumented ones that much longer or shorter are said to be


@dataclass(frozen=True)
class Part:
    """What of the ideal went here: 0.05 is 5 % of it. Negative: gained. Bounds are None where none are claimed."""

    name: str  # of PARTS
    lost: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Attribution:
    """One configuration against its baseline. `efficiency` is that of a worker against one of the baseline's, as in the
    tables. Without phases all is `unattributed`, and `why` says so."""

    row: ConfigurationRow
    baseline: str
    efficiency: float
    parts: tuple[Part, ...]  # those that can be, in the order of PARTS; they add up to 1 - efficiency
    disturbance: float | None  # of the instrumented steps, the larger of the two sides
    why: str = ""

    @property
    def lost(self) -> float:
        return 1.0 - self.efficiency

    def part(self, name: str) -> float:
        """What was lost there; 0 where it cannot be."""
        return sum(part.lost for part in self.parts if part.name == name)


@dataclass(frozen=True)
class Evidence:
    """What is known beside the two means: how much slower forward became elsewhere, and what is fixed of a step."""

    row: ConfigurationRow
    slower: float | None  # of a neighbour; None: look at our own forward
    fixed: Fixed | None  # of the baseline's computing
    batches: tuple[float, float]  # samples that one worker computes at a time, ours and the baseline's
    base_busy: frozenset[int] = frozenset()  # phases in which the baseline itself communicates


@once
def attributions(results: Results) -> list[Attribution]:
    """Every configuration with an efficiency that is no baseline itself, in the order of results.configurations."""
    every, rows = steps.steps(results), results.rows
    by_name = {str(row["configuration"]): row for row in rows}
    compared = [row for row in rows if known(row["efficiency"]) and row["baseline"] != row["configuration"]]
    both = [(every.get(str(row["configuration"])), every.get(str(row["baseline"]))) for row in compared]
    neighbours = Neighbours((ours, base) for ours, base in both if ours and base and int(ours.row["workers"]) > 1)
    lines = steps.lines(results)
    attributed = []
    for row, (ours, base) in zip(compared, both, strict=True):
        other = by_name[str(row["baseline"])]
        if ours is None or base is None:
            attributed.append(_unknown(row, other, "its phases" if ours is None else "its baseline's phases"))
            continue
        clean = steps.clean(row) or steps.cut(row)
        batches = (_at_once(row), _at_once(other))
        slower, line = None if clean else neighbours.slower(row), lines.get(str(row["baseline"]))
        evidence = Evidence(row, slower, line, batches, steps.communicates_in(other))
        attributed.append(attribute(ours, base, evidence))
    return attributed


def attribute(ours: Steps, base: Steps, evidence: Evidence) -> Attribution:
    """The parts of one configuration, each with its interval where both sides have three repeats."""
    whole, before = ours.mean(), base.mean()
    lost = parts(whole, before, evidence)
    bounds = _bounds(ours, base, evidence, lost)
    can = _possible(ours, base, evidence)
    disturbance = max(ours.disturbance, base.disturbance, key=abs)
    shown = [Part(PARTS[at], float(lost[at]), *bounds[at]) for at in range(len(PARTS)) if at in can or lost[at] != 0.0]
    return Attribution(
        ours.row,
        str(base.row["configuration"]),
        before.worker_seconds / whole.worker_seconds,
        tuple(shown),
        disturbance,
    )


def parts(ours: Mean, base: Mean, evidence: Evidence) -> Vector:
    """(PARTS,) shares of our worker-seconds; they add up to 1 - base / ours."""
    row = evidence.row
    grown = np.array([ours.spent(phase) - base.spent(phase) for phase in range(len(ours.shares))])
    lost = np.zeros(len(PARTS))
    lost[INPUT], lost[EXPOSED] = grown[DATA], grown[COMMUNICATION]
    lost[FOUND], lost[AVERAGED] = grown[MATCHMAKING], grown[AVERAGING]
    lost[BUBBLE] = ours.idle * ours.worker_seconds - base.idle * base.worker_seconds
    lost[UNKNOWN] = grown[UNATTRIBUTED]
    busy = steps.communicates_in(row)
    lost[MIXED if OPTIMIZER in evidence.base_busy else WITHIN if OPTIMIZER in busy else UPDATE] = grown[OPTIMIZER]
    slower = evidence.slower or (steps.slower(ours, base) if steps.clean(row) else None)
    for phase in COMPUTING:
        if steps.one_process(row) or phase in evidence.base_busy or (phase in busy and slower is None):
            lost[MIXED] += grown[phase]
        elif phase in busy:
            assert slower is not None
            lost[KERNELS] += base.spent(phase) * (slower - 1.0)
            lost[WITHIN] += grown[phase] - base.spent(phase) * (slower - 1.0)
        else:
            lost[KERNELS] += grown[phase]
    _take(lost, _smaller(evidence), (KERNELS,), FIXED)
    lag = ours.lag * ours.worker_seconds - base.lag * base.worker_seconds
    _take(lost, lag, WAITING, STRAGGLERS)
    return np.asarray(lost / ours.worker_seconds, dtype=np.float64)


def _take(lost: Vector, most: float, places: Sequence[int], to: int) -> None:
    """Move up to `most` from these places, in their order, as far as something was lost there."""
    for place in places:
        taken = min(max(0.0, lost[place]), max(0.0, most))
        lost[place], lost[to], most = lost[place] - taken, lost[to] + taken, most - taken


def _smaller(evidence: Evidence) -> float:
    """Worker-seconds of a sample that the baseline's own fixed cost adds, shared by fewer samples at a time."""
    ours, base = evidence.batches
    return evidence.fixed.seconds * (1 / ours - 1 / base) if evidence.fixed and ours < base else 0.0


def _at_once(row: ConfigurationRow) -> float:
    """Samples that a worker computes at a time."""
    parts = [row["accumulation"] or 1, row["micro_batches"] or 1]
    return float(row["batch_per_worker"]) / math.prod(parts)


def _possible(ours: Steps, base: Steps, evidence: Evidence) -> set[int]:
    """Which parts are shown though nothing was lost there: of these the phases were measured."""
    several = int(ours.row["workers"]) > 1
    can = {KERNELS, UPDATE if OPTIMIZER not in steps.communicates_in(ours.row) else WITHIN, UNKNOWN}
    can |= {INPUT} if ours.exposed[DATA] else set()
    can |= {EXPOSED} if several and ours.exposed[COMMUNICATION] else set()
    can |= {part for part, phase in ((FOUND, MATCHMAKING), (AVERAGED, AVERAGING)) if ours.exposed[phase]}
    apart = steps.cut(ours.row) or steps.one_process(ours.row) or of_peers(str(ours.row["framework"]))
    can |= {STRAGGLERS} if several and not apart else set()
    return can | ({BUBBLE} if ours.idle is not None else set())


def _bounds(
    ours: Steps, base: Steps, evidence: Evidence, lost: Vector
) -> list[tuple[float, float] | tuple[None, None]]:
    """Of each part."""
    counts = [len(ours.rates), len(base.rates)]
    if min(counts) < FEWEST_REPEATS:
        return [(None, None)] * len(PARTS)
    from scipy.special import stdtrit  # of scipy.special: scipy.stats takes half a second to import

    whole, before = ours.mean(), base.mean()
    left_out = (
        np.stack([parts(ours.mean(at), before, evidence) for at in range(counts[0])]),
        np.stack([parts(whole, base.mean(at), evidence) for at in range(counts[1])]),
    )
    variances = np.stack([(n - 1) * each.var(axis=0) for n, each in zip(counts, left_out, strict=True)])
    total = variances.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = welch_satterthwaite(list(variances), [np.full(len(PARTS), count - 1.0) for count in counts])
    half = np.where(total > 0, stdtrit(np.where(total > 0, freedom, 1.0), 0.975) * np.sqrt(total), 0.0)
    return [(float(value - width), float(value + width)) for value, width in zip(lost, half, strict=True)]


def _unknown(row: ConfigurationRow, base: ConfigurationRow, whose: str) -> Attribution:
    """All that was lost, under the one name that it can have."""
    efficiency = float(row["efficiency"])
    all_of_it = Part(PARTS[UNKNOWN], 1 - efficiency, None, None)
    why = f"{whose} were not measured"
    return Attribution(row, str(base["configuration"]), efficiency, (all_of_it,), None, why)
