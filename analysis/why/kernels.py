"""What the computing itself became: slower beside other workers, and what of it no size of a batch changes.

**Slower**: forward of a framework whose collectives all run later does nothing but compute. Its seconds over those of
the baseline's forward say how much slower the same kernels run where several workers share a memory, caches and a
clock. A framework that communicates in forward borrows this from those that do not, with the same model, batch and
workers in the same study.

**Fixed**: forward and backward of several batch sizes lie on a line, seconds = fixed + per sample x batch. `fixed` is
launching kernels and whatever else a batch of none would cost: with small batches it is most of a step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.frames.baseline import BATCH_KEYS, values_of
from analysis.frames.cache import once
from analysis.frames.configurations import KEYS
from analysis.frames.results import Results
from analysis.frames.rounds import of_peers
from analysis.frames.row_types import ConfigurationRow
from analysis.why import steps
from analysis.why.steps import COMPUTING, FORWARD, Mean, Steps, communicates_in, cut, one_process
from scaling_study.stats.alpha_beta import Point, fit

Row = ConfigurationRow
LEAST_RANGE = 1.5  # of batch sizes, largest over smallest: below, a line says nothing of where it begins
# What decides how fast the same kernels run; the framework and what it sends do not.
SURROUNDINGS = (
    *("model", "workers", "hosts", "batch_per_worker", "precision", "device", "cores_per_worker", "accumulation"),
    *("compile", "memory_format", "image_size", "image_width", "freeze", "sequence_length", "padding", "data"),
)


def clean(row: Row) -> bool:
    """Whether its forward computes and nothing else."""
    return not (cut(row) or one_process(row) or FORWARD in communicates_in(row))


def slower(ours: Mean, base: Mean) -> float | None:
    """How many times as long forward takes of a sample as the baseline's does; None where one has none."""
    before, after = base.spent(FORWARD), ours.spent(FORWARD)
    return after / before if before > 0 and after > 0 else None


class Neighbours:
    """How much slower forward became where nothing hides in it: what a framework that communicates in it borrows."""

    def __init__(self, pairs: Iterable[tuple[Steps, Steps]]) -> None:
        """`pairs`: configurations of several workers and their baselines."""
        self._known: defaultdict[tuple[Any, ...], list[float]] = defaultdict(list)
        for ours, base in pairs:
            if clean(ours.row) and clean(base.row) and (factor := slower(ours.mean(), base.mean())):
                self._known[_surroundings(ours.row)].append(factor)

    def slower(self, row: Row) -> float | None:
        """The geometric mean of what they show; None where there are none."""
        neighbours = self._known.get(_surroundings(row), [])
        return math.exp(sum(map(math.log, neighbours)) / len(neighbours)) if neighbours else None


def _surroundings(row: Row) -> tuple[Any, ...]:
    return values_of(row, SURROUNDINGS)


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
    """fixed() of a study."""
    return fixed(steps.steps(results))


def fixed(every: Mapping[str, Steps]) -> dict[str, Fixed]:
    """Configuration -> what is fixed of its computing, for all that were measured with several batch sizes."""
    families: defaultdict[tuple[Any, ...], list[Steps]] = defaultdict(list)
    for timed in every.values():
        if clean(timed.row) and not of_peers(str(timed.row["framework"])):  # whose round has many batches
            families[values_of(timed.row, ALIKE)].append(timed)
    fixed_of: dict[str, Fixed] = {}
    for family in families.values():
        if line := _line(family):
            fixed_of |= {str(timed.row["configuration"]): line for timed in family}
    return fixed_of


ALIKE = tuple(key for key in KEYS if key not in BATCH_KEYS)


def _line(family: Sequence[Steps]) -> Fixed | None:
    sizes = {int(timed.row["batch_per_worker"]): timed for timed in family}
    if len(sizes) < 2 or max(sizes) < LEAST_RANGE * min(sizes):
        return None
    phases = tuple(phase for phase in COMPUTING if phase not in communicates_in(family[0].row))
    points = [_point(size, sizes[size], phases) for size in sorted(sizes)]
    if any(point.seconds <= 0 for point in points):
        return None
    line = fit(points)
    return Fixed(line.alpha_seconds, line.alpha_low, line.alpha_high, tuple(sorted(sizes)), phases)


def _point(size: int, timed: Steps, phases: Sequence[int]) -> Point:
    """Seconds of these phases in one step."""
    per_step = timed.step_seconds * timed.shares[:, list(phases)].sum(axis=1)
    error = float(np.std(per_step, ddof=1)) / math.sqrt(len(per_step)) if len(per_step) > 1 else None
    return Point(size, float(per_step.mean()), error)
