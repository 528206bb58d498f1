"""The effect of one change, all else equal: pairs of configurations that differ in one key, and sentences on them.

Each ratio has its own 95 % interval, as everywhere on a page. Its effect is judged by one that is corrected for all
pairs. Where the effect does not follow from the first, the second is printed, labelled "among".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.frames import configurations
from analysis.frames.configurations import BATCH_KEYS, KEYS, known, over, same, values_of
from analysis.frames.results import MAIN_KEYS, Results, carried, once, words
from analysis.frames.rows import ConfigurationRow, as_rows, grouped
from analysis.statistics import ranking
from analysis.statistics.ranking import Uncertainty
from analysis.text import span
from analysis.views import allreduce_gain
from analysis.views.target import NOT_RESOLVED
from scaling_study.trial import Trial

MOST_MODELS, MOST_CHANGES = 3, 4  # in the sentences
NO_AXIS = ("seed", "warm", "learning_rate", "epochs", "warmup_epochs", "hosts", "command", "workdir")  # of speed
RESOLVED, NO_DIFFERENCE = "resolved", allreduce_gain.NO_DIFFERENCE  # beside NOT_RESOLVED: effects of a change
SPEED = "Samples/s"
Judged = tuple[str, float, float, int]  # of a pair: its effect, corrected bounds, and for how many these are corrected


@dataclass(frozen=True)
class Change:
    """One key at another value, all else equal: the ratio of throughputs with its own 95 % interval. `effect`:
    RESOLVED, NOT_RESOLVED or NO_DIFFERENCE, from the interval `corrected` for `tests` pairs: that of the view
    allreduce_gain for 16-bit gradients, for other changes one for all of these. `whose`: of a change of batch, the
    series that has it, in a study of several. `tied_among`: configurations of which these two have the highest mean,
    too close to call; 0 where they are told apart, or others are faster."""

    model: str
    what: str
    ratio: float
    low: float
    high: float
    effect: str
    name: str = ""
    corrected: tuple[float, float] = (math.nan, math.nan)
    tests: int = 0
    whose: str = ""
    tied_among: int = 0

    @property
    def shown(self) -> tuple[float, float, int]:
        """Bounds to print beside the effect: its own ones (and 0) where the effect follows from them, else the
        corrected ones and for how many tests."""
        told = self.effect == NO_DIFFERENCE or (not self.low <= 1 <= self.high) == (self.effect == RESOLVED)
        return (self.low, self.high, 0) if told else (*self.corrected, self.tests)


def sentences(changes: Sequence[Change], several: bool) -> list[str]:
    """A sentence for each key and value: `fp16 gradients: +4 % [+1, +6] with resnet18; not resolved with resnet8 [-5,
    +6] %.` `several`: models, of which those with a resolved effect come first."""
    said = []
    for what, ours in list(grouped(changes, lambda change: change.what).items())[:MOST_CHANGES]:
        by_model = grouped(ours, lambda change: change.model)
        if len(by_model) > 1 and all(change.effect == NOT_RESOLVED for change in ours):
            by_model = {"": ours}
        ordered = sorted(by_model.items(), key=lambda of: all(change.effect != RESOLVED for change in of[1]))
        each = [_effect(own, f" with {model}" * (several and model != "")) for model, own in ordered[:MOST_MODELS]]
        whose = {change.whose for change in ours}
        who = f"{SPEED} of {whose.pop()}" if len(whose) == 1 and "" not in whose else SPEED
        said.append(f"{what.replace(SPEED, who)}: {'; '.join(each)}.")
    return said


def _effect(own: Sequence[Change], of_model: str) -> str:
    """`+4 % [+1, +6]`, `+24 to +36 % (each within ±5 %)`, `not resolved [-5, +6] %`, or `-1 to +7 % (each within
    ±6 %), resolved in 2 of 4 comparisons`. Brackets hold every interval of these."""
    gains = [_gain(end(change.ratio for change in own)) for end in (min, max)]
    lows, highs, tests = zip(*(change.shown for change in own), strict=True)
    among = f" among {max(tests)} pairs" if any(tests) else ""
    outermost = f"[{_gain(min(lows))}, {_gain(max(highs))}]"
    resolved = [change for change in own if change.effect == RESOLVED]
    if not resolved:
        alike = all(change.effect == NO_DIFFERENCE for change in own)
        return f"{NO_DIFFERENCE if alike else NOT_RESOLVED}{among}{of_model} {outermost} %"
    within = widest(zip((change.ratio for change in own), lows, highs, strict=True))
    margin = outermost if gains[0] == gains[1] else f"(each within ±{within} %)"
    counted = "" if len(resolved) == len(own) else f", resolved in {len(resolved)} of {len(own)} comparisons"
    tied = [change.tied_among for change in resolved if change.tied_among]
    tested = "a pair" if len(tied) == 1 else "pairs"
    as_pairs = f" (as {tested}; among all {max(tied)} too close to call)" if tied else ""
    return f"{span(*gains)} % {margin}{among}{of_model}{counted}{as_pairs}"


def widest(bounds: Iterable[tuple[float, float, float]]) -> int:
    """The farthest that a bound lies from its value, of (value, low, high), in hundredths, rounded up."""
    farthest = max(max(value - low, high - value) for value, low, high in bounds)
    return math.ceil(round(100 * farthest, 6))


def _gain(ratio: float) -> str:
    """`+4`, `-0.3` or `0`: percent, of which a small one keeps its first figure."""
    value = 100 * (ratio - 1)
    if abs(value) < 0.005:
        return "0"
    return f"{value:+.0f}" if abs(value) >= 0.95 else f"{value:+.1g}"


# The pairs of a study.


def of(
    rows: Sequence[ConfigurationRow],
    results: Results,
    name_of: Callable[[ConfigurationRow], str],
    but: Sequence[str] = (),
) -> Iterator[Change]:
    """Of every pair that differs in one key alone, but for these keys; a batch is held against the smallest."""
    keys = [key for key in results.series_keys if key not in (*MAIN_KEYS, *NO_AXIS, *but)]
    keys = ["allreduce", *(key for key in keys if not key.startswith("train_")), results.study.batch_key]
    sure = Uncertainty.of_rows([row for row in results.rows if row["n"]], over_baselines=False)
    fit = [row for row in rows if sure.knows(row)]
    pairs = [(row, other, key) for key in keys for row, other in _pairs(fit, key)]
    judged = _gains(results)
    judged |= _tested([(row, other) for row, other, _ in pairs if _ids(row, other) not in judged], sure)
    order = {model: at for at, model in enumerate(results.models)}
    apart = {_values(row, other, key) for row, other, key in pairs if _unlike_batches(row) or _unlike_batches(other)}
    many = len({row["series"] for row in fit}) > 1
    for row, other, key in sorted(pairs, key=lambda pair: order[str(pair[0]["model"])]):
        own, (effect, low, high, tests) = over(row, other), judged[_ids(row, other)]
        if own.low is None or own.high is None:
            continue
        name = name_of(row)
        yield Change(
            str(row["model"]),
            _in_words(row, other, key, _values(row, other, key) in apart),
            own.mean,
            own.low,
            own.high,
            effect,
            name,
            (low, high),
            tests,
            name.removesuffix(f", {configurations.batch_words(row)}") if many and key in BATCH_KEYS else "",
            _highest(results).get(frozenset(_ids(row, other)), 0),
        )


def _ids(row: ConfigurationRow, other: ConfigurationRow) -> tuple[str, str]:
    return str(row["configuration"]), str(other["configuration"])


def _values(row: ConfigurationRow, other: ConfigurationRow, key: str) -> tuple[Any, ...]:
    return key, row[key], other[key]


def _unlike_batches(row: ConfigurationRow) -> bool:
    return not same(row["batch_per_worker"], row["global_batch"])


@once
def _highest(results: Results) -> dict[frozenset[str], int]:
    """Each highest mean with one that is too close to it to call -> among how many: in a row of the tables, or of all
    that do the same work."""
    standings = ranking.standings(results).items()
    pairs = {frozenset((name, of.beside)): of.among for name, of in standings if of.verdict == ranking.ALIKE}
    for best in as_rows(ranking.best(results)):
        pairs |= {frozenset((best["configuration"], name)): best["among"] for name in best["indistinguishable"]}
    return pairs


def _gains(results: Results) -> dict[tuple[str, str], Judged]:
    """The view of 16-bit gradients on its pairs, where it claims an interval."""
    said = {
        allreduce_gain.FASTER: RESOLVED,
        allreduce_gain.SLOWER: RESOLVED,
        allreduce_gain.NOT_RESOLVED: NOT_RESOLVED,
        allreduce_gain.NO_DIFFERENCE: NO_DIFFERENCE,
    }
    pairs = allreduce_gain.gains(results)
    tests = int(pairs.tests.notna().sum())
    return {
        (str(pair["configuration"]), str(pair["reference"])): (
            said[str(pair["verdict"])],
            float(pair["gain_low"]),
            float(pair["gain_high"]),
            tests if known(pair["tests"]) else 0,
        )
        for pair in as_rows(pairs)
        if pair["verdict"] in said
    }


def _tested(
    both: Sequence[tuple[ConfigurationRow, ConfigurationRow]], sure: Uncertainty
) -> dict[tuple[str, str], Judged]:
    """Of these pairs, corrected for as many (Holm)."""
    return {
        _ids(*pair): (RESOLVED if found.changed else NOT_RESOLVED, found.low, found.high, len(both))
        for pair, found in zip(both, sure.judged(both), strict=True)
    }


def _pairs(rows: Sequence[ConfigurationRow], key: str) -> Iterator[tuple[ConfigurationRow, ConfigurationRow]]:
    """(a row, the one that differs from it in `key` alone and has the first value)."""
    batch = key in BATCH_KEYS
    alike = [name for name in KEYS if name != key and not (batch and name in BATCH_KEYS)]
    usual = "fp32" if key == "allreduce" else getattr(Trial, key, None)
    having = [row for row in rows if known(row[key]) and not (key == "allreduce" and row[key] == "none")]
    for ours in grouped(having, lambda row: values_of(row, alike)).values():
        of_values = {row[key]: row for row in ours}
        first, *others = sorted(of_values, key=lambda value: (value != usual and not batch, value))
        if key == "allreduce" and first != usual:
            continue
        for value in others[-1:] if batch else others:
            yield of_values[value], of_values[first]


def _in_words(row: ConfigurationRow, other: ConfigurationRow, key: str, unlike: bool) -> str:
    """`Samples/s at batch 64 per worker instead of 32`. `unlike`: a worker's batch is not always the global one."""
    if key in BATCH_KEYS:
        which, whose = ("batch", " per worker" * unlike) if key == "batch_per_worker" else ("global batch", "")
        return f"{SPEED} at {which} {row[key]}{whose} instead of {other[key]}"
    if key == "allreduce":
        text = carried(row[key])
        return f"{row[key]} gradients" if text.startswith("in ") else f"Gradients {text}"
    mine, its = (" ".join(words(side, [key])) for side in (row, other))
    return f"{mine} instead of {its}" if mine and its else mine or f"Without {its}"
