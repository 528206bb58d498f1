"""Which configuration is the best, and which are tied with it (95 %).

The highest mean of many is partly luck, so "the best" is a set: everything whose distance to the best may be nothing.
Intervals of each configuration's ratio to the best of the others (as multiple comparisons with the best have them: Hsu,
Ann. Stat. 12, 1984) hold for all of them at once. One whose interval goes beyond 1 may be the best; an upper bound of
exactly 1 says that it is slower. Hsu's own bounds keep the true best in 95 % of studies, but where all are equal some
configuration falls out in far more than 5 % of them. So each bound is one of all pairs of the study (Bonferroni), with
the spread of repeats as spread.py believes it: where configurations are equally fast, any of them is called slower in
at most 5 % of studies.

    samples_per_second         the fastest
    efficiency                 speed-up over the ratio of workers, of configurations with more than one worker
    samples_per_worker_second  the cheapest where every worker costs the same
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.baseline import known, values_of
from analysis.frames.cache import once
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import typed
from analysis.statistics import equal_work
from analysis.statistics.simultaneous_intervals import Uncertainty

FALSE_ALARMS = 0.05  # of studies of equal configurations, in which any is called worse than another
QUANTITIES = ("samples_per_second", "efficiency", "samples_per_worker_second")
BEST, ALIKE, WORSE, WORST, NO_INTERVAL = "best", "indistinguishable", "worse", "worst", "no interval"
NAMES = ("model", "configuration", "series", "batch", "workers", "n")
COLUMNS = (*NAMES, "work", "place", "value", "ratio", "ratio_low", "ratio_high", "verdict")
BEST_COLUMNS = (
    *(*NAMES, "work", "value", "value_low", "value_high", "ratio", "ratio_low", "ratio_high"),
    *("indistinguishable", "without_interval", "among"),
)
Row = ConfigurationRow


@once
def best(results: Results, by: str = "samples_per_second") -> pd.DataFrame:
    """A row of BEST_COLUMNS for each model that has anything to rank, in the order of their names; for each work of it
    (equal_work.py) where there are several, that of most configurations first, with what it is in `work`.

    `value` has the interval of the configuration by itself, `ratio` the simultaneous one to the best of the others: its
    lower bound is 1 where nothing else may be the best. `indistinguishable` are the ids, best first, of those that may
    be the best instead; `without_interval` of those with fewer than 3 repeats, of which nothing is claimed. Where the
    highest value has fewer than 3 repeats, it stands there without any interval.
    """
    ranked = ranking(results, by)
    rows = results.configurations.set_index("configuration")
    winners = []
    for _, ours in ranked.groupby(["model", "work"], sort=False):
        first, others = ours.iloc[0], ours.iloc[1:]
        name = "efficiency" if by == "efficiency" else "interval"
        per = int(first.workers) if by == "samples_per_worker_second" else 1
        own = {end: rows[f"{name}_{end}"][first.configuration] for end in ("low", "high")}
        winners.append(
            {key: first[key] for key in BEST_COLUMNS if key in COLUMNS}
            | {f"value_{end}": float(bound) / per if known(bound) else None for end, bound in own.items()}
            | {"indistinguishable": tuple(map(str, others.configuration[others.verdict == ALIKE]))}
            | {"without_interval": tuple(map(str, others.configuration[others.verdict == NO_INTERVAL]))}
            | {"among": len(ours)}
        )
    return pd.DataFrame(winners, columns=list(BEST_COLUMNS), dtype=object)


def ranking(results: Results, by: str = "samples_per_second") -> pd.DataFrame:
    """A row of COLUMNS for each configuration that may be ranked, the highest value of each model and work first.

    `ratio` is to the best of the others, with its simultaneous interval. Left out is what failed, failed parity, is
    held back by this machine or oversubscribed; of efficiency also what has no speed-up.
    """
    if by not in QUANTITIES:
        raise ValueError(f"by is one of {', '.join(QUANTITIES)}, not {by!r}")
    rows: list[Row] = [row for row in results.rows if row["n"]]
    uncertainty = Uncertainty.of_rows(rows, over_baselines=by == "efficiency")
    ranked: list[dict[str, Any]] = []
    groups = list(_alike(results, [row for row in rows if _competes(row, by)]))
    pairs = pair_count((ours for ours, _ in groups), uncertainty)
    for ours, interval_of in groups:
        ours.sort(key=lambda row: -_value(row, by))
        bounds_of = bounds([row for row in ours if uncertainty.knows(row)], by, uncertainty, pairs)
        for index, row in enumerate(ours):
            low, high = bounds_of.get(str(row["configuration"]), (None, None))
            rival = ours[0 if index else 1] if len(ours) > 1 else None
            ranked.append(
                dict(zip(NAMES, values_of(row, NAMES), strict=True))
                | {
                    "work": interval_of,
                    "place": index + 1,
                    "value": _value(row, by),
                    "ratio_low": low,
                    "ratio_high": high,
                }
                | {"ratio": None if rival is None else _value(row, by) / _value(rival, by)}
                | {"verdict": _verdict(index, high) if uncertainty.knows(row) else NO_INTERVAL}
            )
    kinds: dict[str, Any] = dict.fromkeys(("model", "configuration", "series", "work", "verdict"), "string")
    kinds |= dict.fromkeys(("batch", "workers", "n", "place"), "Int64")
    return typed(ranked, {name: kinds.get(name, "float64") for name in COLUMNS})


def _alike(results: Results, rows: Sequence[Row]) -> Iterator[tuple[list[Row], str]]:
    """Rows of one model and work, and what that work is where the model has several."""
    for model in results.models:
        works = equal_work.alike([row for row in rows if row["model"] == model])
        yield from ((ours, equal_work.name(ours[0]) if len(works) > 1 else "") for ours in works)


def _competes(row: Row, by: str) -> bool:
    if row["oversubscribed"] or (known(row["not_comparable"]) and row["not_comparable"]):
        return False
    if by != "efficiency":
        return True
    return known(row["speedup"]) and int(row["workers"]) > 1 and row["baseline"] != row["configuration"]


def _value(row: Row, by: str) -> float:
    if by == "samples_per_worker_second":
        return float(row["samples_per_second"]) / int(row["workers"])
    return row["efficiency"] if by == "efficiency" else row["samples_per_second"]


def _verdict(index: int, high: float | None) -> str:
    return BEST if index == 0 else ALIKE if high is None or high > 1 else WORSE


@once
def verdicts_of_rows(results: Results) -> dict[str, str]:
    """Those of a study."""
    return row_verdicts(results.rows)


def row_verdicts(rows: Sequence[Row]) -> dict[str, str]:
    """Configuration -> BEST, ALIKE, WORSE, WORST or NO_INTERVAL by throughput among those of its model, batch size and
    work: a row of the tables. One alone in its row has none; WORST is the slowest of three or more if it is WORSE.

    The verdicts of all rows of a study hold together: where all configurations of each row are equally fast, any of
    them is called WORSE in at most FALSE_ALARMS of studies.
    """
    competing = [row for row in rows if row["n"] and _competes(row, "samples_per_second")]
    uncertainty = Uncertainty.of_rows([row for row in rows if row["n"]], over_baselines=False)
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in competing:
        groups.setdefault((str(row["model"]), int(row["batch"])), []).append(row)
    alike = [ours for group in groups.values() for ours in equal_work.alike(group) if len(ours) > 1]
    pairs = pair_count(alike, uncertainty)
    verdicts: dict[str, str] = {}
    for ours in alike:
        ours.sort(key=lambda row: -row["samples_per_second"])
        bounds_of = bounds([row for row in ours if uncertainty.knows(row)], "samples_per_second", uncertainty, pairs)
        for index, row in enumerate(ours):
            name = str(row["configuration"])
            _, high = bounds_of.get(name, (None, None))
            unknown = index > 0 and high is None
            verdicts[name] = NO_INTERVAL if unknown else _verdict(index, high)
        if len(ours) > 2 and verdicts[name] == WORSE:
            verdicts[name] = WORST
    return verdicts


def pair_count(groups: Iterable[Sequence[Row]], uncertainty: Uncertainty) -> int:
    """Of all pairs within a group, of rows of which enough is known."""
    return sum(math.comb(sum(uncertainty.knows(row) for row in ours), 2) for ours in groups)


def bounds(rows: Sequence[Row], by: str, uncertainty: Uncertainty, pairs: int) -> dict[str, tuple[float, float]]:
    """Configuration -> bounds of its ratio to the best of the others; none for fewer than two rows.

    `pairs`: of the whole family, all of whose bounds hold at once.
    """
    if len(rows) < 2:
        return {}
    widths = uncertainty.half_widths(rows, 1 - FALSE_ALARMS / pairs)
    logs = uncertainty.log_values(rows, by)
    ahead = logs[:, None] - logs
    np.fill_diagonal(ahead, np.inf)  # nothing is its own rival
    most = (ahead + widths).min(axis=1)
    rivals = np.broadcast_to(most >= 0, ahead.shape)
    least = np.where(rivals, ahead - widths, np.inf).min(axis=1)  # infinite: nothing else may be the best
    lows, highs = np.exp(np.minimum(least, 0.0)), np.exp(np.maximum(most, 0.0))
    names = (str(row["configuration"]) for row in rows)
    return {name: (float(low), float(high)) for name, low, high in zip(names, lows, highs, strict=True)}
