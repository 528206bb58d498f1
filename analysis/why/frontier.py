"""Memory against batch, and where it ends: what fits, what was out of memory, and what lies between.

    bytes |            x  x     out of memory: measured, or implied by a smaller batch (not run)
          |        o'
          |    o'               measured peaks lie on a line: bytes = fixed + per sample x batch
          | o'
          +---------------- batch of a worker

The device's limit is only known as a bracket: the line at the largest batch that fitted is below it, and at the
smallest that did not, above. How full a device may be is nowhere recorded, and allocators lose some of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.frames import outcomes
from analysis.frames.baseline import BATCH_KEYS, known, values_of
from analysis.frames.cache import once
from analysis.frames.configurations import KEYS, over
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow, TrialRow
from analysis.frames.rows import as_rows
from scaling_study.stats.intervals import Interval

OOM, FIND_MAX = "oom", "max_batch"
ALIKE = tuple(key for key in KEYS if key not in (*BATCH_KEYS, "find"))
AS_LARGE = tuple(key for key in ALIKE if key != "warm")  # a search has launches to itself; what fits is the same
Row = ConfigurationRow


@dataclass(frozen=True)
class Family:
    """Configurations that differ in the size of the batch only. Batches are of one worker, in ascending order."""

    rows: tuple[Row, ...]  # measured, with a peak
    out: tuple[int, ...]  # batches that were out of memory
    implied: tuple[int, ...]  # batches that were not run for it
    searched: int | None  # the largest that fits, where it was looked for (find: max_batch)
    about: Row  # the keys that all have

    @property
    def series(self) -> str:
        return str(self.about["series"])

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(int(row["batch_per_worker"]) for row in self.rows)

    @property
    def peaks(self) -> tuple[int, ...]:
        """Bytes of one worker, the largest of its repeats."""
        return tuple(row["peak_memory_bytes"] or 0 for row in self.rows)

    @property
    def largest(self) -> int | None:
        """That fitted; None where none was seen to."""
        return max((*self.batches, *([self.searched] if self.searched else ())), default=None)

    @property
    def smallest_out(self) -> int | None:
        """The smallest that did not fit though nothing larger did."""
        beyond = [batch for batch in self.out if batch > (self.largest or 0)]
        return min(beyond, default=None)

    @property
    def line(self) -> tuple[float, float] | None:
        """(fixed bytes, bytes of a sample), by least squares of relative errors; None of one size or no growth."""
        if len(set(self.batches)) < 2:
            return None
        slope, fixed = np.polyfit(self.batches, self.peaks, 1, w=1 / np.array(self.peaks))  # relative errors
        return (float(fixed), float(slope)) if slope > 0 else None

    def bytes_at(self, batch: int) -> float | None:
        """By the line."""
        return None if self.line is None else self.line[0] + self.line[1] * batch

    @property
    def growth(self) -> tuple[int, int, Interval] | None:
        """(from, to, ratio of throughputs) of the two largest batches that were measured."""
        if len(self.rows) < 2:
            return None
        before, last = self.rows[-2:]
        return self.batches[-2], self.batches[-1], over(last, before)


def families(results: Results, model: str | None = None) -> list[Family]:
    """Of one model or all, in the order of their series; those of which no memory is known are left out."""
    return [family for family in _every(results) if model is None or family.about["model"] == model]


@once
def _every(results: Results) -> list[Family]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    ordered = results.configurations.sort_values(["series_order", "batch_per_worker"], kind="stable")
    for row in as_rows(ordered, Row):
        groups.setdefault(values_of(row, ALIKE), []).append(row)
    searching = results.trials[(results.trials["find"] == FIND_MAX) & (results.trials.status == "ok")]
    searches = as_rows(searching, TrialRow)
    families = [_family(rows, searches) for rows in groups.values()]
    return [family for family in families if family.rows or family.out]


def _family(rows: Sequence[Row], searches: Sequence[TrialRow]) -> Family:
    about = rows[0]
    out = [row for row in rows if not row["n"] and row["status"] == OOM]
    alike = [trial["max_batch"] for trial in searches if values_of(trial, AS_LARGE) == values_of(about, AS_LARGE)]
    return Family(
        tuple(row for row in rows if row["n"] and known(row["peak_memory_bytes"])),
        tuple(int(row["batch_per_worker"]) for row in out if not outcomes.implied(row)),
        tuple(int(row["batch_per_worker"]) for row in out if outcomes.implied(row)),
        max(filter(None, alike), default=None), about,
    )  # fmt: skip
