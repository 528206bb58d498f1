"""How many repeats each configuration gets in all, decided once from its planned ones (Stein's two stages). Pure.

    launched by itself        as many as bring its throughput to +-target_interval
    in shared launches        as many launches as bring its ratio to the baseline there, a ratio that is taken within
                              each launch and that a drift of the machine leaves alone. The baseline gets as many as
                              the configurations that are held against it. Its own throughput counts where none of
                              its model and batch is held against it, or nothing is known of the ratio

Adding repeats one at a time until the interval looks narrow would stop at lucky streaks, and the interval would cover
less than its nominal 95 % (docs/uncertainty.md has the figures).
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
    """The study's baseline: its configurations, and how others are paired with them (`scaling` of the study)."""

    baseline: Sequence[str] = ()
    scaling: str = "weak"


def totals(configurations: Sequence[Planned], known: Known, against: Against) -> dict[str, int]:
    """Configuration -> its repeats in all: from the planned ones up to max_repeats. A failure adds none."""
    counts = {planned.trial.configuration: planned.measure.repeats for planned in configurations}
    most = {planned.trial.configuration: planned.measure.max_repeats for planned in configurations}
    asked = wanted(configurations, known, against)
    return {name: min(max(count, asked.get(name, 0)), most[name]) for name, count in counts.items()}


def wanted(
    configurations: Sequence[Planned], known: Known, against: Against, target: float | None = None
) -> dict[str, int]:
    """Configuration -> the repeats that bring its interval to `target` (None: its own target_interval).

    Only configurations whose planned repeats are all ok are in it.
    """
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
    """The planned repeats of a configuration, if all are ok and there are enough of them; else none."""
    count = planned.measure.repeats
    if planned.seeds or planned.unsupported or count < FEWEST_REPEATS:
        return []
    records = [record for repeat in range(1, count + 1) if (record := known(planned, repeat))]
    return records if len(records) == count and all(record.samples_per_second for record in records) else []


def _of_ratios(
    shared: Mapping[str, Planned], measured: Mapping[str, Sequence[Summary]], against: Against, target: float | None
) -> dict[str, int]:
    """Launches that bring ratios to the target: of configurations that shared launches, and of their baseline."""
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
