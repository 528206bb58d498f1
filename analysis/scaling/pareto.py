"""Cost against time for a million samples: which configurations no other beats in both.

One is beaten by another that is neither slower nor dearer, and better in one. Means decide who is on the front; who is
beaten only by such as are tied with it (the 95 % interval of their ratio of throughputs holds 1) may be on it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.frames.configurations import over
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.scaling.cost import Cost, costs
from analysis.statistics import equal_work

ON, PERHAPS, BEATEN = "on the front", "perhaps on the front", "beaten"


@dataclass(frozen=True)
class Point:
    """One configuration of a model: `cost` in money where all of its model have a price, else in worker-hours."""

    of: Cost
    cost: float
    place: str  # ON, PERHAPS or BEATEN
    by: str = ""  # the series and batch of one that beats it

    @property
    def row(self) -> ConfigurationRow:
        return self.of.row


def points(results: Results, model: str, price: float | None = None) -> list[Point]:
    """Every configuration of a model, the fastest first; of one that does several kinds of work, the most frequent."""
    ours = {str(cost.row["configuration"]): cost for cost in costs(results, price) if cost.row["model"] == model}
    same = next(iter(equal_work.alike(candidate.row for candidate in ours.values())), [])
    return placed([ours[str(row["configuration"])] for row in same])


def placed(among: Sequence[Cost]) -> list[Point]:
    """The fastest first. With a price for some only, all are counted in worker-hours."""
    priced = all(candidate.money is not None for candidate in among)
    cost = {
        id(candidate): float(candidate.money if priced and candidate.money is not None else candidate.worker_hours)
        for candidate in among
    }
    ordered = sorted(among, key=lambda candidate: (candidate.seconds, cost[id(candidate)]))
    front: list[Cost] = []  # ascending seconds, descending cost
    placed_points = []
    for candidate in ordered:
        beating = [other for other in front if cost[id(other)] <= cost[id(candidate)]]
        if not beating:
            front.append(candidate)
            placed_points.append(Point(candidate, cost[id(candidate)], ON))
            continue
        sure = next((other for other in beating if _surely(other, candidate, cost)), None)
        by = (sure or beating[-1]).row
        placed_points.append(
            Point(candidate, cost[id(candidate)], BEATEN if sure else PERHAPS, f"{by['series']}, batch {by['batch']}")
        )
    return placed_points


def _surely(better: Cost, worse: Cost, cost: Mapping[int, float]) -> bool:
    """Whether it is faster and cheaper beyond doubt: by more than what another number of workers costs."""
    dearer = (cost[id(better)] / better.worker_hours) / (cost[id(worse)] / worse.worker_hours)
    needed = max(1.0, dearer * int(better.row["workers"]) / int(worse.row["workers"]))
    ratio = over(better.row, worse.row)
    return ratio.low is not None and ratio.low > needed
