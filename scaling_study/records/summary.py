"""Summaries of finished trials, which the driver keeps in memory: a record without the seconds of every step.

A sweep of a thousand trials, or one of a hundred thousand steps, needs no more memory than its plan; whatever needs
the raw samples (the analysis) reads them from the disk.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from scaling_study.errors import printable
from scaling_study.models import NO_MODEL
from scaling_study.records import store
from scaling_study.records.store import Record, UnreadableRecord, busy_elsewhere_cores, samples_per_second
from scaling_study.targets import repeat_name
from scaling_study.trial import Trial


@dataclass(frozen=True, slots=True)
class Summary:
    """One finished trial; the fields are the record's, but for what is worked out from its ranks."""

    id: str
    configuration: str
    trial: Trial
    status: str
    reason: str
    parity: str
    total_seconds: float | None
    samples_per_second: float | None  # None unless ok, and where nothing is trained
    busy_elsewhere_cores: float | None
    launch: str = ""  # that it shared with others

    @property
    def implied(self) -> bool:
        return store.implied(self.status, self.reason)


def summarize(record: Record) -> Summary:
    """Raises UnreadableRecord for a record that contradicts itself."""
    ok = record.status == "ok"
    try:
        speed = throughput(record) if ok and record.trial.model != NO_MODEL else None
    except (ValueError, ArithmeticError) as error:
        raise UnreadableRecord(f"{record.id}: ok, but not every rank has timed steps") from error
    whole = record.status in store.STATUSES and record.id == f"{record.configuration}.{repeat_name(vars(record.trial))}"
    if not whole or (speed is not None and not 0 < speed < math.inf):
        raise UnreadableRecord(f"{record.id}: status {record.status!r}, throughput {speed} cannot be")
    reason, parity = printable(record.reason), printable(record.parity)
    return Summary(
        record.id,
        record.configuration,
        record.trial,
        record.status,
        reason,
        parity,
        record.total_seconds,
        speed,
        busy_elsewhere_cores(record.ranks) if ok else None,
        sys.intern(record.launch),
    )


def throughput(record: Record) -> float:
    """Samples per second over all workers. Raises ValueError or ArithmeticError where a rank was not timed.

    Each step must have taken time, also where their sum is positive.
    """
    if not all(seconds > 0 for rank in record.ranks for seconds in rank.step_seconds):
        raise ValueError("a step took no time")
    return samples_per_second((r.samples_seen for r in record.ranks), (r.window_seconds for r in record.ranks))
