"""How many repeats each configuration gets in all, decided once, from its planned ones (Stein's two stages).

    by itself     as many as bring its throughput to +-target_interval
    in rounds     as many launches as bring its ratio to the baseline there, which what came over all at once leaves
                  alone; and the baseline as many as whatever is held against it. Where nothing of its model and batch
                  is held against it, or nothing is known of the ratio: its throughput

Adding one at a time until the interval looks narrow would stop at lucky streaks, and the interval would cover less
than its nominal 95 % (docs/uncertainty.md has the figures).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scaling_study.records.summary import Summary
from scaling_study.stats import launches
from scaling_study.stats.intervals import FEWEST_REPEATS, repeats_for
from scaling_study.study import groups
from scaling_study.study.plan import Planned

Known = Callable[[Planned, int], Summary | None]  # the record of a configuration's n-th repeat, if it is finished


@dataclass(frozen=True)
class Against:
    """What is held against others: its configurations, and how they are paired (`scaling` of the study)."""

    baseline: Sequence[str] = ()
    scaling: str = "weak"


def totals(configurations: Sequence[Planned], known: Known, against: Against) -> dict[str, int]:
    """Configuration -> its repeats in all: the planned ones where these do not say more, and at most max_repeats.

    Failures are not mended by more repeats.
    """
    counts = {planned.trial.configuration: planned.measure.repeats for planned in configurations}
    most = {planned.trial.configuration: planned.measure.max_repeats for planned in configurations}
    asked = wanted(configurations, known, against)
    return {name: min(max(count, asked.get(name, 0)), most[name]) for name, count in counts.items()}


def wanted(
    configurations: Sequence[Planned], known: Known, against: Against, target: float | None = None
) -> dict[str, int]:
    """Configuration -> how many repeats bring it to `target`, by default its own target_interval; of those that have
    all their planned repeats."""
    asked = {planned.trial.configuration: planned for planned in configurations}
    measured = {name: records for name, planned in asked.items() if (records := _all(planned, known))}
    shared = {name: asked[name] for name, records in measured.items() if all(record.launch for record in records)}
    counts = _of_ratios(shared, measured, against, target) if against.baseline and shared else {}
    for name, records in measured.items():
        if name not in counts:
            rates = [record.samples_per_second or math.nan for record in records]
            counts[name] = repeats_for(rates, target or asked[name].measure.target_interval)
    return {name: max(count, asked[name].measure.repeats) for name, count in counts.items()}


def _all(planned: Planned, known: Known) -> list[Summary]:
    """The planned repeats, where all of them are ok and there are enough; else none."""
    count = planned.measure.repeats
    if planned.seeds or planned.unsupported or count < FEWEST_REPEATS:
        return []
    records = [record for repeat in range(1, count + 1) if (record := known(planned, repeat))]
    return records if len(records) == count and all(record.samples_per_second for record in records) else []


def _of_ratios(
    shared: Mapping[str, Planned], measured: Mapping[str, Sequence[Summary]], against: Against, target: float | None
) -> dict[str, int]:
    """Launches of configurations that shared them, and of what these are held against; of no others."""
    names = list(shared)
    logs = [
        {launches.together(record.launch): math.log(record.samples_per_second or math.nan) for record in measured[name]}
        for name in names
    ]
    whose = {name: groups.processes(planned.trial) for name, planned in shared.items()}
    spreads = dict(zip(names, launches.spreads(launches.table(logs), list(whose.values())), strict=True))
    counts = dict[str, int]()
    held = {name: planned for name, planned in shared.items() if name not in against.baseline}
    for other in set(against.baseline) & set(shared):
        for name, planned in held.items():
            if groups.comparable(shared[other].trial, planned.trial, against.scaling):
                variance, freedom = launches.of_ratio(spreads[name], spreads[other], whose[name] == whose[other])
                more = launches.needed(variance, freedom, target or planned.measure.target_interval)
                if freedom:
                    counts[name], counts[other] = (max(counts.get(each, 0), more) for each in (name, other))
    return counts
