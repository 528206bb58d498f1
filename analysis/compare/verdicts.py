"""Pairs of configurations of two results, the ratio of each pair, and the changes that are more than chance."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.findings import name_of
from analysis.frames import configurations
from analysis.frames.configurations import KEYS, known, same, values, values_of
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow, as_rows, grouped, numbers, typed
from analysis.statistics.ranking import holm, steps
from scaling_study.stats.intervals import FEWEST_REPEATS, first_stage, student_t
from scaling_study.stats.launches import total
from scaling_study.stats.spread import Spread, believed

# Which configuration of one result is which of the other: by their ids, and where these differ by their trial keys.
#
# An id holds the machine's fingerprint and the timed window, so the same configuration has another one elsewhere. Keys
# are compared from the strictest reading to the loosest, and each pairs what is alone of its kind on both sides:
#
#     id -> every key and the window -> every key -> all but what a machine decides, and the window -> all but what it
#     decides
#
# What a pair then still differs in is told (differences.py), not passed over.

Row = ConfigurationRow  # a configuration: the columns of configurations.csv
OF_THE_MACHINE = ("machine", "device", "cores_per_worker", "data")  # what a plan resolves by looking at one
COMPARED = tuple(key for key in KEYS if key != "machine")
PORTABLE = tuple(key for key in KEYS if key not in OF_THE_MACHINE)


@dataclass(frozen=True)
class MatchedPair:
    """One configuration in both results."""

    a: Row
    b: Row

    @property
    def differing(self) -> list[str]:
        """The keys in which they differ all the same."""
        return [key for key in COMPARED if not same(self.a[key], self.b[key])]


@dataclass(frozen=True)
class Pairing:
    """Every configuration of both, in the order of A: paired, or in one of them only."""

    pairs: list[MatchedPair]
    only_a: list[Row]
    only_b: list[Row]


def pair(a: Sequence[Row], b: Sequence[Row], window: Callable[[Row], Hashable]) -> Pairing:
    """`window`: when the timed window of a configuration ends, as something to compare."""
    readings: tuple[Callable[[Row], Hashable], ...] = (
        lambda row: row["configuration"],
        lambda row: (values_of(row, COMPARED), window(row)),
        lambda row: values_of(row, COMPARED),
        lambda row: (values_of(row, PORTABLE), window(row)),
        lambda row: values_of(row, PORTABLE),
    )
    pairs, left_a, left_b = list[MatchedPair](), list(a), list(b)
    for reading in readings:
        alone_a, alone_b = _alone(left_a, reading), _alone(left_b, reading)
        pairs += [MatchedPair(row, alone_b[where]) for where, row in alone_a.items() if where in alone_b]
        left_a = _without(left_a, [matched.a for matched in pairs])
        left_b = _without(left_b, [matched.b for matched in pairs])
    order = {row["configuration"]: index for index, row in enumerate(a)}
    return Pairing(sorted(pairs, key=lambda matched: order[matched.a["configuration"]]), left_a, left_b)


def nearly(left: Sequence[Row], others: Sequence[Row]) -> Counter[str]:
    """Key -> how many of these would have a counterpart but for this one key."""
    missed: Counter[str] = Counter()
    for row in left:
        differing = [MatchedPair(row, other).differing for other in others]
        missed.update({keys[0] for keys in differing if len(keys) == 1})
    return missed


def _alone(rows: Sequence[Row], place: Callable[[Row], Hashable]) -> dict[Hashable, Row]:
    """Place -> the row, where it is the only one there."""
    counts = Counter(map(place, rows))
    return {where: row for row in rows if counts[where := place(row)] == 1}


def _without(rows: Iterable[Row], taken: Iterable[Row]) -> list[Row]:
    names = {row["configuration"] for row in taken}
    return [row for row in rows if row["configuration"] not in names]


# Configurations of which some repeats fail now: a speed of those that are left says nothing of them.
#
# A repeat failed if it was run and is not ok. One that somebody or the machine's queue ended (cancelled), and one that
# was never run (an implied oom), tell nothing of the program.


NO_FAULT = ("ok", "cancelled", configurations.IMPLIED)
Trials = Sequence[Row]  # of one configuration
MOST_REASONS = 2  # that are told of one configuration


def failed_trials(runs: pd.DataFrame) -> Mapping[str, Trials]:
    """Configuration -> its failed trials in `runs` (columns.TRIALS), by repeat."""
    not_ok = as_rows(runs.loc[runs.status != "ok", ["configuration", "repeat", "status", "reason"]])
    failed = [trial for trial in not_ok if configurations.word(trial) not in NO_FAULT]
    return grouped(sorted(failed, key=lambda trial: int(trial["repeat"])), lambda trial: str(trial["configuration"]))


def with_failures(
    verdicts: Verdicts, pairs: Sequence[MatchedPair], a: Mapping[str, Trials], b: Mapping[str, Trials]
) -> Verdicts:
    """Verdicts in which each pair whose runs fail in B, and did not in A, is FAILING, with the reason.

    A pair that is slower or fails parity keeps that verdict, and its reason names the failures too.
    """
    table = verdicts.table.copy()
    for index, pair in enumerate(pairs):
        ours, theirs = (side.get(str(row["configuration"]), ()) for row, side in ((pair.a, a), (pair.b, b)))
        if not _fails_now(pair, len(ours), len(theirs)):
            continue
        verdict, reason = table.verdict[index], table.reason[index]
        kept = verdict in (SLOWER, BROKEN)
        sentence = f"A: {counted(pair.a, ours)}, B: {counted(pair.b, theirs)}; {why(theirs)}"
        table.loc[index, "verdict"] = verdict if kept else FAILING
        table.loc[index, "reason"] = f"{reason}; {sentence}" if kept and known(reason) and reason else sentence
    return replace(verdicts, table=table)


def counted(row: Row, failed: Trials) -> str:
    """`1 of 3 ok`, of the repeats that tell anything."""
    return f"{row['n']} of {row['n'] + len(failed)} ok"


def why(failed: Trials) -> str:
    """`failed: rank 1 died`; `timeout: no step within 60 s and oom`: each once."""
    told = list(dict.fromkeys(_told(trial["status"], trial["reason"]) for trial in failed))
    more = f", {len(told) - MOST_REASONS} more" if len(told) > MOST_REASONS else ""
    return " and ".join(told[:MOST_REASONS]) + more


def _told(status: Any, reason: Any) -> str:
    return f"{status}: {reason}" if known(reason) and reason not in ("", status) else str(status)


def _fails_now(pair: MatchedPair, failed_a: int, failed_b: int) -> bool:
    """True where B has failures and A had none, or has so many that it can no longer be tested as A could.

    One that ran in A or B only is a verdict of its own; one that failed in A too was so before.
    """
    if not (pair.a["n"] and pair.b["n"] and failed_b):
        return False
    return not failed_a or pair.a["n"] >= FEWEST_REPEATS > pair.b["n"]


# What A measured and B should hold, and does not: a check that passes for want of a measurement is none.
#
# A configuration is missing in B where B's study plans it and no record of it is there, or where its records there
# cannot be read. What B's study no longer plans was taken out by somebody, and is listed as in A only.

UNREADABLE, FEW = "its records cannot be read", "some of its records cannot be read"
ABSENT, UNSAID = "planned, and without a record", "without a record, and B's study does not say what it plans"
PERHAPS = "B plans one of its kind that is without a record"
FOLDER = re.compile(r"/([^/]+)\.r\d+/")  # of a trial


@dataclass(frozen=True)
class Missing:
    """A configuration of A (its id, and as a reader knows it), and why B says nothing of it."""

    configuration: str
    label: str
    why: str

    def __str__(self) -> str:
        return f"{self.label} ({self.why})"


def missing_in(pairing: Pairing, b: Results) -> list[Missing]:
    """Configurations that A measured and B lacks, in the order of A; those that are paired come last."""
    broken, why = _unreadable(b), _reasons(pairing, b)
    missing = [(row, why(row["configuration"])) for row in pairing.only_a if row["n"]]
    missing = [(row, UNREADABLE if reason and row["configuration"] in broken else reason) for row, reason in missing]
    missing += [(pair.a, FEW) for pair in pairing.pairs if _untested(pair, broken)]
    return [Missing(row["configuration"], name_of(row), reason) for row, reason in missing if reason]


def _reasons(pairing: Pairing, b: Results) -> Callable[[str], str]:
    """An id of A -> why B has nothing of it; empty where B's study does not plan it.

    Where B plans some of A's ids, ids say what it plans. Where it plans none (another machine, another window), they
    agree at most but for their digests, and each of B's that is without a record stands for one of A's.
    """
    planned = b.study.configurations
    if planned is None:
        return lambda name: UNSAID
    unseen, ids = set(b.unseen), {row["configuration"] for row in pairing.only_a}
    ids |= {pair.a["configuration"] for pair in pairing.pairs}
    if ids & set(planned):
        return lambda name: ABSENT if name in unseen else ""
    left = Counter(_kind(name) for name in unseen)

    def perhaps(name: str) -> str:
        left[_kind(name)] -= 1
        return PERHAPS if left[_kind(name)] >= 0 else ""

    return perhaps


def _kind(configuration: str) -> str:
    """An id without its digest, which holds the machine and the window too and so is another one elsewhere."""
    return configuration.rpartition("-")[0]


def _untested(pair: MatchedPair, broken: Set[str]) -> bool:
    """True where it could have been tested, had all of its records in B been readable."""
    return pair.a["n"] >= FEWEST_REPEATS > pair.b["n"] > 0 and pair.b["configuration"] in broken


def _unreadable(read: Results) -> set[str]:
    """The configurations in the folders of whose trials a record could not be read."""
    return {name for line in read.skipped for name in FOLDER.findall(line)}


# The ratio of each pair, B over A, and which changes are more than chance among so many.
#
# Three to five repeats say too little about their own spread. So the spread is believed as stats/spread.py has it, from
# both sides of a pair together and as far as all pairs look alike from them. Of the p-values Holm's procedure takes
# those that hold together (Scand. J. Stat. 6, 1979): whatever the number of pairs and however they depend on each
# other, with nothing changed the chance of one false alarm or more is at most 5 %. A false discovery rate would find
# more and let one in twenty of its finds be wrong; what ends a build should not be.
#
# Intervals are of the level at which their pair is tested, and that of "unchanged" is 95 % by itself. What such a
# comparison could have found at all is told too (`detectable`): nothing found is good news only where something would
# have been.

Values = NDArray[np.float64]
FALSE_ALARMS, CONFIDENCE = 0.05, 0.95
MOST = 0.75  # of all pairs, that go one way
POWER = 0.9  # with which a change is found that is said to be detectable
SLOWER, FASTER, LOST, FOUND, BROKEN = "slower", "faster", "no longer runs", "runs now", "now fails parity"
FAILING = "runs fail now"  # some of its repeats
SMALL, SAME, UNRESOLVED = "below the threshold", "unchanged", "not resolved"
NO_INTERVAL, NOT_COMPARABLE, NEITHER = "no interval", "not comparable", "ran in neither"
REGRESSIONS, GAINS = (SLOWER, LOST, BROKEN, FAILING), (FASTER, FOUND)
SAYS_NOTHING = (NO_INTERVAL, NOT_COMPARABLE, NEITHER)
KINDS: dict[str, Any] = {
    **dict.fromkeys(("configuration_a", "configuration_b", "model", "series"), "string"),
    **dict.fromkeys(("batch", "n_a", "n_b"), "Int64"),
    **numbers("samples_per_second_a", "samples_per_second_b", "ratio", "ratio_low", "ratio_high"),
    **numbers("p_value", "p_corrected"),
    **dict.fromkeys(("verdict", "reason"), "string"),
}


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
    """`table` has a row of KINDS for each pair, in their order. `noise`: typical relative spread between repeats.

    `detectable`: the relative change of one pair that POWER of such comparisons find, at its median over the pairs.
    """

    table: pd.DataFrame
    overall: Overall | None
    noise: float | None
    detectable: float | None

    def having(self, *verdicts: str) -> pd.DataFrame:
        return self.table[self.table.verdict.isin(verdicts)]


def judge(pairs: Sequence[MatchedPair], threshold: float) -> Verdicts:
    """`threshold`: the smallest relative change that is of interest (0.01: 1 %); any, with 0."""
    rows = [_row(pair) for pair in pairs]
    fit = [(row, pair) for row, pair in zip(rows, pairs, strict=True) if not row["verdict"]]
    overall = noise = detectable = None
    if fit:
        ratios = np.array([row["ratio"] for row, _ in fit])
        spread, factors = _spread([pair for _, pair in fit])
        for (row, _), judgement in zip(fit, judge_ratios(ratios, spread, factors, threshold), strict=True):
            row |= judgement
        least = _half_over_launches([pair for _, pair in fit])
        overall, noise = _overall(np.log(ratios), spread, factors, least), spread.typical
        detectable = max(threshold, found_in(POWER, spread, factors))
    return Verdicts(typed(rows, KINDS), overall, noise, detectable)


def judge_ratios(ratios: Values, spread: Spread, factors: Values, threshold: float) -> list[dict[str, Any]]:
    """For each of m ratios what judge() says of it: interval, p-values, verdict.

    `spread`: of each pair. `factors`: (m,), what of it the variance of the logarithm of the ratio is.
    """
    every = (np.arange(len(ratios)), factors)
    widths = np.exp(spread.half_widths(CONFIDENCE, every))
    p_values = spread.p_values(np.log(ratios), every)
    judged = pd.DataFrame(
        {
            "ratio": ratios,
            "ratio_low": ratios / widths,
            "ratio_high": ratios * widths,
            "p_value": p_values,
            "p_corrected": holm(p_values),
        }
    )
    judged["verdict"] = [_verdict(row, threshold) for row in as_rows(judged)]
    # All but the test of equivalence are corrected, and their intervals are as their verdicts.
    corrected = np.exp(spread.half_widths(1 - FALSE_ALARMS / steps(p_values, FALSE_ALARMS)[1], every))
    own = judged.verdict == SAME
    judged["ratio_low"] = judged.ratio_low.where(own, ratios / corrected)
    judged["ratio_high"] = judged.ratio_high.where(own, ratios * corrected)
    return as_rows(judged)


def found_in(power: float, spread: Spread, factors: Values) -> float:
    """The relative change of one pair that this share of comparisons find: the median over the m pairs.

    The first of Holm's steps is Bonferroni's, and one change among unchanged pairs has to pass just that.
    """
    every = (np.arange(len(factors)), factors)
    level = 1 - FALSE_ALARMS / len(factors)
    return float(np.median(np.expm1(spread.half_widths(level, every) + spread.half_widths(2 * power - 1, every))))


def _row(pair: MatchedPair) -> dict[str, Any]:
    """The columns of a pair before any is judged; `verdict` is empty if its ratio is to be tested."""
    a, b = pair.a, pair.b
    verdict, reason = _without_a_test(a, b)
    tested = a["n"] and b["n"] and verdict not in (NOT_COMPARABLE, BROKEN)
    about = {name: b[name] for name in ("model", "series", "batch")} | {"verdict": verdict, "reason": reason}
    for side, row in (("a", a), ("b", b)):
        about |= {f"configuration_{side}": row["configuration"], f"n_{side}": row["n"]}
        about[f"samples_per_second_{side}"] = row["samples_per_second"] if row["n"] else None
    return about | {"ratio": b["samples_per_second"] / a["samples_per_second"] if tested else None}


def _without_a_test(a: Row, b: Row) -> tuple[str, str]:
    """(verdict, reason) of a pair whose throughputs are not to be tested against each other; else twice nothing."""
    if not a["n"] or not b["n"]:
        words = f"A: {configurations.word(a)}, B: {configurations.word(b)}"
        return (LOST if a["n"] else FOUND if b["n"] else NEITHER), words
    if configurations.failed(b) and not configurations.failed(a):
        return BROKEN, " ".join(str(b["parity"]).split())
    for side, row in (("A", a), ("B", b)):
        if row["not_comparable"]:
            return NOT_COMPARABLE, f"{side}: {row['not_comparable']}"
    if known(a["parameters"]) and known(b["parameters"]) and a["parameters"] != b["parameters"]:
        counts = f"{int(a['parameters']):,} parameters in A, {int(b['parameters']):,} in B"
        return NOT_COMPARABLE, f"another model was trained: {counts}"
    if min(a["n"], b["n"]) < FEWEST_REPEATS:
        return NO_INTERVAL, f"{a['n']} and {b['n']} repeats"
    return "", ""


def _spread(pairs: Sequence[MatchedPair]) -> tuple[Spread, Values]:
    """(the spread of each pair, believed; what of its variance that of its ratio is): 1 / n of A + 1 / n of B."""
    variances, freedoms = [], []
    for pair in pairs:
        stages = [np.log(first_stage(np.array(values(row)), int(row["planned"]))) for row in (pair.a, pair.b)]
        freedoms.append(sum(len(stage) - 1 for stage in stages))
        variances.append(sum(float(((stage - stage.mean()) ** 2).sum()) for stage in stages) / freedoms[-1])
    factors = np.array([1 / int(pair.a["n"]) + 1 / int(pair.b["n"]) for pair in pairs])
    return believed(variances, freedoms), factors


def _overall(changes: Values, spread: Spread, factors: Values, least: float) -> Overall:
    """`least`: half of the interval of their mean, at least."""
    count = len(changes)
    terms = [(np.array([index]), factor / count**2) for index, factor in enumerate(factors)]
    mean, half = float(changes.mean()), max(least, float(spread.half_widths(CONFIDENCE, *terms)[0]))
    most = count > 1 and float((changes * math.copysign(1, mean) > 0).mean()) >= MOST
    return Overall(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count, most and abs(mean) > half)


def _half_over_launches(pairs: Sequence[MatchedPair]) -> float:
    """Half of the interval of the pairs' mean change, of launches that all of a side shared: what came over a launch is
    in each of them, and no average over pairs takes it away. 0 where a side shared none."""
    terms = []
    for side in ([pair.a for pair in pairs], [pair.b for pair in pairs]):
        each = [configurations.logs(row) for row in side]
        means = [fmean(of[name] for of in each) for name in each[0] if all(name in of for of in each)]
        if len(side) < 2 or len(means) < FEWEST_REPEATS:
            return 0.0
        planned = first_stage(means, min(int(row["planned"]) for row in side))
        terms.append((variance(planned) / len(means), len(planned) - 1.0))
    error, freedom = total(terms)
    return student_t(CONFIDENCE, freedom) * math.sqrt(error) if freedom else 0.0


def _verdict(row: Mapping[str, Any], threshold: float) -> str:
    if row["p_corrected"] <= FALSE_ALARMS:
        changed = abs(row["ratio"] - 1) >= threshold
        return (SLOWER if row["ratio"] < 1 else FASTER) if changed else SMALL
    within = 1 - threshold <= row["ratio_low"] and row["ratio_high"] <= 1 + threshold
    return SAME if within and threshold else UNRESOLVED
