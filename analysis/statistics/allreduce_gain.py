"""What a 16-bit allreduce gains over fp32: the ratio of throughputs, everything else equal, with its interval.

Faster and slower hold for all pairs of a study together: where nothing differs, any pair is called either in at most
5 % of studies (Holm). "No difference" is a test of equivalence: the whole 95 % interval of the ratio lies within the
study's target_interval of 1. What is neither is not resolved.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames import launches, outcomes
from analysis.frames.baseline import values_of
from analysis.frames.cache import once
from analysis.frames.configurations import KEYS, over
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows, typed
from analysis.statistics.simultaneous_intervals import Uncertainty, holm

REFERENCE = "fp32"
COMPARED = ("fp16", "bf16")
FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference"
NOT_RESOLVED, NO_INTERVAL, NOT_COMPARABLE = "not resolved", "no interval", "not comparable"
FALSE_ALARMS = 0.05  # of studies in which nothing differs
COLUMNS = (
    *(key for key in KEYS if key != "allreduce"),
    *("allreduce", "gain", "gain_low", "gain_high", "n", "verdict", "configuration", "reference"),
)
OF_EACH = (
    *("configuration", "status", "reason", "not_comparable", "planned", "n", "samples_per_second"),
    *("repeat_values", "repeat_launches", *launches.COLUMNS),
)


@once
def gains(results: Results) -> pd.DataFrame:
    """That of a study."""
    return table(results.configurations, results.study.target_interval)


def table(configurations: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """One row for each pair of configurations that differ in allreduce precision only.

    `gain` is the compared throughput over that of fp32, with its bounds; `n` the smaller number of repeats.
    `verdict` is faster, slower, "no difference" (within `threshold` of 1, 0.02: 2 %), "not resolved", "no interval"
    (fewer than 3 repeats), "not comparable", or, where one of the two was not measured, which and why: "fp16: oom".
    """
    rows = as_rows(configurations[[*KEYS, *OF_EACH]], ConfigurationRow)
    alike = [key for key in KEYS if key != "allreduce"]
    references: dict[tuple[Any, ...], ConfigurationRow] = {}
    for row in rows:
        if row["allreduce"] == REFERENCE:
            references.setdefault(values_of(row, alike), row)
    candidates = ((row, references.get(values_of(row, alike))) for row in rows if row["allreduce"] in COMPARED)
    compared = [(row, reference) for row, reference in candidates if reference is not None]
    pairs = [_pair(row, reference, threshold) for row, reference in compared]
    _call_changes(pairs, compared, [row for row in rows if row["n"]])
    kinds: dict[str, Any] = {key: configurations[key].dtype for key in (*alike, "allreduce", "configuration")}
    kinds |= {"reference": "string", "verdict": "string", "n": "Int64"}
    return typed(pairs, {name: kinds.get(name, "float64") for name in COLUMNS})


def _pair(row: ConfigurationRow, reference: ConfigurationRow, threshold: float) -> dict[str, Any]:
    """All but what needs the other pairs: whether one is faster or slower."""
    pair: dict[str, Any] = dict(zip(KEYS, values_of(row, KEYS), strict=True))
    pair |= {"configuration": row["configuration"], "reference": reference["configuration"]}
    missing = [f"{side['allreduce']}: {outcomes.word(side)}" for side in (reference, row) if side["status"] != "ok"]
    if missing:
        return pair | {"n": 0, "verdict": ", ".join(missing)}
    gain = over(row, reference)
    if row["not_comparable"] or reference["not_comparable"]:
        return pair | {"n": gain.n, "verdict": NOT_COMPARABLE}
    if gain.low is None or gain.high is None:
        verdict = NO_INTERVAL
    else:
        verdict = NO_DIFFERENCE if 1 - threshold <= gain.low and gain.high <= 1 + threshold else NOT_RESOLVED
    return pair | {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high, "n": gain.n, "verdict": verdict}


def _call_changes(
    pairs: list[dict[str, Any]], compared: list[tuple[ConfigurationRow, ConfigurationRow]], measured: list[Any]
) -> None:
    """Enter FASTER and SLOWER where a difference is more than chance among so many."""
    tested = [at for at, pair in enumerate(pairs) if pair["verdict"] == NOT_RESOLVED]
    if not tested:
        return
    of_all = Uncertainty.of_rows(measured, over_baselines=False).p_values([compared[at] for at in tested])
    shared = [launches.p_value(*compared[at]) for at in tested]  # by the same processes, what comes over these cancels
    p_values = [p if within is None else within for p, within in zip(of_all, shared, strict=True)]
    for at, p in zip(tested, holm(p_values), strict=True):
        if p <= FALSE_ALARMS:
            pairs[at]["verdict"] = FASTER if pairs[at]["gain"] > 1 else SLOWER
