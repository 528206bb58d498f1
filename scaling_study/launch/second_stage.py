"""How many repeats each configuration gets in all, decided once, from its planned ones (Stein's two stages).

    by itself     as many as bring its throughput to +-target_interval
    in rounds     as many launches as bring its ratio to the baseline there, which what came over all at once leaves
                  alone; and the baseline as many as whatever is held against it. Without a baseline: its throughput

Adding one at a time until the interval looks narrow would stop at lucky streaks, and the interval would cover less
than its nominal 95 % (docs/uncertainty.md has the figures).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from scaling_study.records.summary import Summary
from scaling_study.stats import launches
from scaling_study.stats.intervals import FEWEST_REPEATS, repeats_for
from scaling_study.study import groups
from scaling_study.study.plan import Planned

Known = Callable[[Planned, int], Summary | None]  # the record of a configuration's n-th repeat, if it is finished


def totals(configurations: Sequence[Planned], known: Known, baseline: Sequence[str] = ()) -> dict[str, int]:
    """Configuration -> its repeats in all: the planned ones where these do not say more.

    `baseline`: the configurations that are held against the others. Failures are not mended by more repeats.
    """
    asked = {planned.trial.configuration: planned for planned in configurations}
    counts = {name: planned.measure.repeats for name, planned in asked.items()}
    measured = {name: records for name, planned in asked.items() if (records := _all(planned, known))}
    shared = {name: asked[name] for name, records in measured.items() if all(record.launch for record in records)}
    for name, records in measured.items():
        if name not in shared or not baseline:
            rates = [record.samples_per_second or math.nan for record in records]
            counts[name] = _within(asked[name], repeats_for(rates, asked[name].measure.target_interval))
    if baseline and shared:
        counts |= _of_ratios(shared, measured, baseline)
    return counts


def _all(planned: Planned, known: Known) -> list[Summary]:
    """The planned repeats, where all of them are ok and there are enough; else none."""
    count = planned.measure.repeats
    if planned.seeds or planned.unsupported or count < FEWEST_REPEATS:
        return []
    records = [record for repeat in range(1, count + 1) if (record := known(planned, repeat))]
    return records if len(records) == count and all(record.samples_per_second for record in records) else []


def _of_ratios(
    shared: Mapping[str, Planned], measured: Mapping[str, Sequence[Summary]], baseline: Sequence[str]
) -> dict[str, int]:
    """Launches of configurations that shared them."""
    names = list(shared)
    together = list(dict.fromkeys(launches.together(record.launch) for name in names for record in measured[name]))
    logs = np.full((len(names), len(together)), math.nan)
    for at, name in enumerate(names):
        for record in measured[name]:
            logs[at, together.index(launches.together(record.launch))] = math.log(record.samples_per_second or math.nan)
    whose = [groups.processes(shared[name].trial) for name in names]
    spreads = dict(zip(names, launches.spreads(logs, whose), strict=True))
    counts = dict.fromkeys(names, 0)
    for name, planned in shared.items():
        for other in names:
            if other in baseline and other != name and shared[other].trial.model == planned.trial.model:
                alike = whose[names.index(name)] == whose[names.index(other)]
                variance, freedom = launches.of_ratio(spreads[name], spreads[other], alike)
                more = launches.needed(variance, freedom, planned.measure.target_interval)
                counts[name], counts[other] = max(counts[name], more), max(counts[other], more)
    return {name: _within(shared[name], count) for name, count in counts.items()}


def _within(planned: Planned, count: int) -> int:
    return min(max(count, planned.measure.repeats), planned.measure.max_repeats)
