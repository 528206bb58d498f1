"""The ratio of each pair, B over A, and which changes are more than chance among so many.

Three to five repeats say too little about their own spread. So the spread is believed as stats/spread.py has it,
from both sides of a pair together and as far as all pairs look alike from them. Of the p-values Holm's procedure takes
those that hold together (Scand. J. Stat. 6, 1979): whatever the number of pairs and however they depend on each
other, with nothing changed the chance of one false alarm or more is at most 5 %. A false discovery rate would find more
and let one in twenty of its finds be wrong; what ends a build should not be.

Intervals are 95 % each, by itself. What such a comparison could have found at all is told too (`detectable`): nothing
found is good news only where something would have been.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.compare.pairs import Pair, Row
from analysis.frames import comparability, outcomes
from analysis.frames.baseline import known
from analysis.frames.configurations import values
from analysis.frames.rows import typed
from analysis.statistics.simultaneous_intervals import holm
from scaling_study.stats.intervals import FEWEST_REPEATS, first_stage
from scaling_study.stats.spread import Spread, believed

Values = NDArray[np.float64]
FALSE_ALARMS, CONFIDENCE = 0.05, 0.95
MOST = 0.75  # of all pairs, that go one way
POWER = 0.9  # with which a change is found that is said to be detectable
SLOWER, FASTER, LOST, FOUND, BROKEN = "slower", "faster", "no longer runs", "runs now", "now fails parity"
FAILING = "runs fail now"  # some of its repeats: failing.py
SMALL, SAME, UNRESOLVED = "below the threshold", "unchanged", "not resolved"
NO_INTERVAL, NOT_COMPARABLE, NEITHER = "no interval", "not comparable", "ran in neither"
REGRESSIONS, GAINS = (SLOWER, LOST, BROKEN, FAILING), (FASTER, FOUND)
SAYS_NOTHING = (NO_INTERVAL, NOT_COMPARABLE, NEITHER)
COLUMNS = (
    *("configuration_a", "configuration_b", "model", "series", "batch", "n_a", "n_b", "samples_per_second_a"),
    *("samples_per_second_b", "ratio", "ratio_low", "ratio_high", "p_value", "p_corrected", "verdict", "reason"),
)


@dataclass(frozen=True)
class Overall:
    """The geometric mean of the ratios of the pairs that were tested, with its interval over the noise of repeats.

    `shared`: it is no chance, and most pairs go the same way: then it may be the machine's, on another day.
    """

    ratio: float
    low: float
    high: float
    pairs: int
    shared: bool


@dataclass(frozen=True)
class Verdicts:
    """`table` has a row of COLUMNS for each pair, in their order. `noise`: typical relative spread between repeats.

    `detectable`: the relative change of one pair that POWER of such comparisons find, at its median over the pairs.
    """

    table: pd.DataFrame
    overall: Overall | None
    noise: float | None
    detectable: float | None

    def having(self, *verdicts: str) -> pd.DataFrame:
        return self.table[self.table.verdict.isin(verdicts)]


def judge(pairs: Sequence[Pair], threshold: float) -> Verdicts:
    """`threshold`: the smallest relative change that is of interest (0.01: 1 %); any, with 0."""
    rows = [_row(pair) for pair in pairs]
    fit = [(row, pair) for row, pair in zip(rows, pairs, strict=True) if not row["verdict"]]
    overall = noise = detectable = None
    if fit:
        ratios = np.array([row["ratio"] for row, _ in fit])
        spread, factors = _spread([pair for _, pair in fit])
        for (row, _), judgement in zip(fit, judged(ratios, spread, factors, threshold), strict=True):
            row |= judgement
        overall, noise = _overall(np.log(ratios), spread, factors), spread.typical
        detectable = max(threshold, found_in(POWER, spread, factors))
    kinds = dict.fromkeys(("model", "series", "verdict", "reason", "configuration_a", "configuration_b"), "string")
    kinds |= dict.fromkeys(("batch", "n_a", "n_b"), "Int64")
    table = typed(rows, {name: kinds.get(name, "float64") for name in COLUMNS})
    return Verdicts(table, overall, noise, detectable)


def judged(ratios: Values, spread: Spread, factors: Values, threshold: float) -> list[dict[str, Any]]:
    """For each of m ratios what judge() says of it: interval, p-values, verdict.

    `spread`: of each pair. `factors`: (m,), what of it the variance of the logarithm of the ratio is.
    """
    every = (np.arange(len(ratios)), factors)
    widths = np.exp(spread.half_widths(CONFIDENCE, every))
    p_values = spread.p_values(np.log(ratios), every)
    columns = zip(ratios, ratios / widths, ratios * widths, p_values, holm(p_values), strict=True)
    names = ("ratio", "ratio_low", "ratio_high", "p_value", "p_corrected")
    judgements = [dict(zip(names, map(float, row), strict=True)) for row in columns]
    return [row | {"verdict": _verdict(row, threshold)} for row in judgements]


def found_in(power: float, spread: Spread, factors: Values) -> float:
    """The relative change of one pair that this share of comparisons find: the median over the m pairs.

    The first of Holm's steps is Bonferroni's, and one change among unchanged pairs has to pass just that.
    """
    every = (np.arange(len(factors)), factors)
    level = 1 - FALSE_ALARMS / len(factors)
    return float(np.median(np.expm1(spread.half_widths(level, every) + spread.half_widths(2 * power - 1, every))))


def _row(pair: Pair) -> dict[str, Any]:
    """What is known of a pair before any is judged; `verdict` is empty if its ratio is to be tested."""
    a, b = pair.a, pair.b
    row = dict.fromkeys(COLUMNS) | {key: b[key] for key in ("model", "series", "batch")}
    row |= {f"{key}_{side}": measured[key] for side, measured in (("a", a), ("b", b)) for key in ("configuration", "n")}
    row |= {
        f"samples_per_second_{side}": measured["samples_per_second"]
        for side, measured in (("a", a), ("b", b))
        if measured["n"]
    }
    verdict, reason = _without_a_test(a, b)
    ratio = None
    if a["n"] and b["n"] and verdict not in (NOT_COMPARABLE, BROKEN):
        ratio = b["samples_per_second"] / a["samples_per_second"]
    return row | {"ratio": ratio, "verdict": verdict, "reason": reason}


def _without_a_test(a: Row, b: Row) -> tuple[str, str]:
    """(verdict, reason) of a pair whose throughputs are not to be tested against each other; else twice nothing."""
    if not a["n"] or not b["n"]:
        words = f"A: {outcomes.word(a)}, B: {outcomes.word(b)}"
        return (LOST if a["n"] else FOUND if b["n"] else NEITHER), words
    if comparability.failed(b) and not comparability.failed(a):
        return BROKEN, " ".join(str(b["parity"]).split())
    for side, row in (("A", a), ("B", b)):
        if known(row["not_comparable"]) and row["not_comparable"]:
            return NOT_COMPARABLE, f"{side}: {row['not_comparable']}"
    if known(a["parameters"]) and known(b["parameters"]) and a["parameters"] != b["parameters"]:
        counts = f"{int(a['parameters']):,} parameters in A, {int(b['parameters']):,} in B"
        return NOT_COMPARABLE, f"another model was trained: {counts}"
    if min(a["n"], b["n"]) < FEWEST_REPEATS:
        return NO_INTERVAL, f"{a['n']} and {b['n']} repeats"
    return "", ""


def _spread(pairs: Sequence[Pair]) -> tuple[Spread, Values]:
    """(the spread of each pair, believed; what of its variance that of its ratio is): 1 / n of A + 1 / n of B."""
    variances, freedoms = [], []
    for pair in pairs:
        stages = [np.log(first_stage(np.array(values(row)), int(row["planned"]))) for row in (pair.a, pair.b)]
        freedoms.append(sum(len(stage) - 1 for stage in stages))
        variances.append(sum(float(((stage - stage.mean()) ** 2).sum()) for stage in stages) / freedoms[-1])
    factors = np.array([1 / int(pair.a["n"]) + 1 / int(pair.b["n"]) for pair in pairs])
    return believed(variances, freedoms), factors


def _overall(changes: Values, spread: Spread, factors: Values) -> Overall:
    count = len(changes)
    terms = [(np.array([index]), factor / count**2) for index, factor in enumerate(factors)]
    mean, half = float(changes.mean()), float(spread.half_widths(CONFIDENCE, *terms)[0])
    most = count > 1 and float((changes * math.copysign(1, mean) > 0).mean()) >= MOST
    return Overall(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count, most and abs(mean) > half)


def _verdict(row: Mapping[str, Any], threshold: float) -> str:
    if row["p_corrected"] <= FALSE_ALARMS:
        changed = abs(row["ratio"] - 1) >= threshold
        return (SLOWER if row["ratio"] < 1 else FASTER) if changed else SMALL
    within = 1 - threshold <= row["ratio_low"] and row["ratio_high"] <= 1 + threshold
    return SAME if within and threshold else UNRESOLVED
