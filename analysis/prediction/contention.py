"""What the workers of one host do to each other's computing: they share its memory, its caches and its clock.

A run with one worker has the host to itself. Forward communicates nothing, so where a study ran a configuration with
one worker and with w on one host, seconds of forward with w over seconds with one is what crowding costs; the geometric
mean over such pairs is taken for all. Configurations that synchronise buffers in forward are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.frames.baseline import known, same, value_of
from analysis.frames.row_types import ConfigurationRow
from analysis.prediction.probed import hosts_of
from analysis.prediction.targets import ALIKE, FUSIONS
from scaling_study.frameworks import FRAMEWORKS

Row = ConfigurationRow


def pairs(rows: Sequence[Row], workers_per_host: int, without: Sequence[str] = ()) -> list[float]:
    """Forward with so many workers over forward with one, of each configuration that ran both on one host.

    `without`: configurations to leave out, because it is they that are predicted.
    """
    ratios = []
    for row in rows:
        if row["framework"] not in FUSIONS or row["workers"] != workers_per_host or row["configuration"] in without:
            continue
        if FRAMEWORKS[str(row["framework"])].syncs(row["buffers"]):
            continue
        if hosts_of(row) > 1 or not row["n"] or not known(row["forward_seconds"]):
            continue
        alone = [
            other
            for other in rows
            if other["workers"] == 1 and other["framework"] == row["framework"] and known(other["forward_seconds"])
            if all(same(value_of(other, key), value_of(row, key)) for key in ALIKE)
        ]
        ratios += [float(row["forward_seconds"]) / float(alone[0]["forward_seconds"])] if alone else []
    return ratios


def factor(ratios: Sequence[float]) -> float:
    """The geometric mean; 1 where nothing was found."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
