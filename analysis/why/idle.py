"""What the ranks of a pipeline wait for other stages, taken out of the phases in which they stood meanwhile.

    worker 0   F0 F1 .  .  B0 B1 norm update        the norm of all gradients needs every stage's,
    worker 1   .  F0 F1 B0 B1 norm........ update   so what worker 1 waits at the end lies in its update

Where stages share weights, their gradients are added up before that, under `communication`: then it lies there.

How long, the timeline says: as long as none of a rank's own events was under way, from the first event of its pipeline
to the last (analysis/pipeline/bubble.py). Without one, all that no phase covers is idle, and what a rank's update takes
longer than the shortest of its pipeline: that one was the last to come and waited for nobody. A rank that has more to
update than the others looks the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
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
