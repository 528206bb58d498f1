"""Configurations that shared launches: their ratios within each launch, and how far these differ between launches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from analysis.frames.baseline import known, values_of
from scaling_study.stats import launches
from scaling_study.stats.intervals import FEWEST_REPEATS, Interval, student_t
from scaling_study.stats.launches import LaunchSpread
from scaling_study.study.groups import ALIKE

COLUMNS = ("launch_spread", "launch_freedom", "processes_spread", "processes_freedom", "launch_members")
Row = Mapping[Any, Any]


def add(rows: Iterable[dict[Any, Any]]) -> None:
    """Enter COLUMNS in the rows (configurations.COLUMNS) of one study that shared launches."""
    shared = [row for row in rows if row["repeat_launches"]]
    # More than were planned were added because of the spread of these.
    planned = launches.table([dict(islice(logs(row).items(), row["planned"])) for row in shared])
    for row, spread in zip(shared, launches.spreads(planned, [values_of(row, ALIKE) for row in shared]), strict=True):
        values = (math.sqrt(spread.variance), spread.freedom, math.sqrt(spread.processes), spread.processes_freedom)
        row |= dict(zip(COLUMNS, (*values, spread.members), strict=True))


def logs(row: Row) -> dict[str, float]:
    """Log samples per second in each launch, by the name of all that were alive together: `3/0` of `3/0-1-horovod`."""
    each = names(row)
    values = (math.log(float(value)) for value in row["repeat_values"].split(";")) if each else ()
    return {launches.together(name): value for name, value in zip(each, values, strict=True)}


def common(rows: Sequence[Row]) -> list[str]:
    """The launches that these with a known spread shared, but for some that took no part in enough of them: one that is
    missing does not take the others' away. None where there are too few for an interval."""
    shared = [logs(row) for row in rows if spread_of(row) is not None]
    while len(shared) > 1:
        names = [name for name in shared[0] if all(name in others for others in shared)]
        if len(names) >= FEWEST_REPEATS:
            return names
        members = Counter(name for each in shared for name in each)
        full = [sum(sorted(members[name] for name in each)[-FEWEST_REPEATS:]) for each in shared]
        shared.pop(len(full) - 1 - full[::-1].index(min(full)))  # the last of those with the emptiest launches
    return []


def names(row: Row) -> list[str]:
    """The launches of its repeats that are ok; none of one that had launches to itself."""
    text = row.get("repeat_launches")
    return text.split(";") if known(text) and text else []


def spread_of(row: Row) -> LaunchSpread | None:
    """None where it is not known: of what had launches to itself, or shared too few."""
    if not names(row) or not known(row["launch_members"]):
        return None
    own, freedom, processes, processes_freedom, members = (row[name] for name in COLUMNS)
    return LaunchSpread(own**2, freedom, processes**2, processes_freedom, int(members))


def ratio(a: Row, b: Row, confidence: float = 0.95) -> Interval | None:
    """The throughput of one over that of another, of the launches that they shared; None where these say nothing."""
    if (seen := _log_ratio(a, b)) is None:
        return None
    half = student_t(confidence, seen.freedom) * seen.error
    mean, low, high = (math.exp(seen.mean + by) for by in (0.0, -half, half))
    return Interval(mean, low, high, seen.launches, seen.freedom + 1)


def needed(a: Row, b: Row, target: float) -> int | None:
    """How many launches would bring the interval of that ratio to +-`target`; None where nothing is known of it."""
    return launches.needed(*_variance(a, b), target) or None


def share_of_processes(a: Row, b: Row) -> float:
    """How wide the interval of a ratio is that the same processes measured, over that of two with processes of their
    own which differ as much; 1 where nothing is known."""
    spread, other = spread_of(a), spread_of(b)
    if spread is None or other is None:
        return 1.0
    same, apart = (launches.of_ratio(spread, other, together)[0] for together in (True, False))
    return min(1.0, math.sqrt(same / apart)) if same and apart else 1.0


def p_value(a: Row, b: Row) -> float | None:
    """How likely a ratio as far from 1 is by chance; None where no launches say it. With no error at all: 0, or 1."""
    from scipy.special import stdtr

    if (seen := _log_ratio(a, b)) is None:
        return None
    if not seen.error:
        return float(not seen.mean)
    return float(2 * stdtr(seen.freedom, -abs(seen.mean) / seen.error))


def interval_of(pairs: Iterable[tuple[Row, Row]]) -> str:
    """In words, what the intervals of these ratios are of."""
    shared = [_log_ratio(a, b) is not None for a, b in pairs]
    if not any(shared):
        return "between repeats, Welch"
    return "within launches that both shared" + ("" if all(shared) else ", else between repeats, Welch")


class LogRatio(NamedTuple):
    """Of the launches that two configurations shared: the mean of its logarithm, and the standard error of that."""

    mean: float
    error: float
    freedom: float
    launches: int


def _log_ratio(a: Row, b: Row) -> LogRatio | None:
    ours, theirs = logs(a), logs(b)
    shared = [name for name in ours if name in theirs]
    variance, freedom = _variance(a, b)
    if len(shared) < FEWEST_REPEATS or not freedom:
        return None
    mean = sum(ours[name] - theirs[name] for name in shared) / len(shared)
    return LogRatio(mean, math.sqrt(variance / len(shared)), freedom, len(shared))


def _variance(a: Row, b: Row) -> tuple[float, float]:
    """Of the log ratio of two in one launch, and its degrees of freedom; 0 and 0 where they are unknown."""
    spread, other = spread_of(a), spread_of(b)
    if spread is None or other is None:
        return 0.0, 0.0
    same_processes = bool({*names(a)} & {*names(b)})
    return launches.of_ratio(spread, other, together=same_processes)
