"""The best configuration of each model, those that are too close to it to call, and verdicts in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from analysis.frames import configurations, results
from analysis.frames.configurations import known, over, trains, values, values_of
from analysis.frames.results import Results, once
from analysis.frames.rows import ConfigurationRow, grouped, typed
from analysis.text import two_figure_percentage
from scaling_study.stats.intervals import FEWEST_REPEATS, first_stage
from scaling_study.stats.launches import total
from scaling_study.stats.spread import Spread, believed, moderated

# Configurations of a model that do the same work, so that the faster of two is the better one: as a baseline is looked
# for, what was trained to a result is held against no timed window. Precision is not among these keys: another
# precision is another way to the same result, and what it costs is parity's to say.

KEYS = ("image_size", "image_width", "freeze", "sequence_length", "data", "warm")
Row = TypeVar("Row", bound=ConfigurationRow)


def by_work(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one model by their work; that of most configurations first."""
    groups = grouped(rows, lambda row: (*values_of(row, KEYS), trains(row)))
    return sorted(groups.values(), key=len, reverse=True)


def name(row: ConfigurationRow) -> str:
    """`224 px, real data`; of a training `cifar10 data, trained`."""
    return ", ".join([*results.words(row, KEYS), *["trained"] * trains(row)])


Values = NDArray[np.float64]


class JudgedRatio(NamedTuple):
    """Whether a ratio of throughputs is other than 1 (Holm), and its 95 % interval, both corrected for `tests`."""

    changed: bool
    low: float
    high: float
    tests: int


@dataclass(frozen=True)
class Uncertainty:
    """`place`: id -> which of the m configurations with enough repeats it is. `counts`: (m,), how many each has.

    `logs`: (m,), of their throughput. Of what shared launches, over those in common (launches.common): what came over
    all at once is in each of them, and in no difference. `by_launch`: (m, k), of the planned ones of these, nan of what
    had others. With `over_baselines` what is compared are speed-ups: each also has the uncertainty of its baseline.
    `most`: (m,), degrees of freedom of a difference of two whose processes measure little else, as their spread is of
    that very difference too; infinite of others.
    """

    place: Mapping[str, int]
    spread: Spread | None  # None: there is no such configuration
    counts: Values
    logs: Values
    by_launch: Values
    over_baselines: bool
    most: Values

    @classmethod
    def of_rows(cls, rows: Sequence[ConfigurationRow], *, over_baselines: bool) -> Uncertainty:
        """The uncertainty of every measured configuration; spreads of all models are pooled."""
        sure = [row for row in rows if row["n"] >= FEWEST_REPEATS]
        place = {str(row["configuration"]): index for index, row in enumerate(sure)}
        counts = np.array([float(row["n"]) for row in sure])
        logs = np.log([float(row["samples_per_second"]) for row in sure])
        variance, freedom, alone = np.zeros(len(sure)), np.zeros(len(sure)), list[int]()
        most = np.full(len(sure), math.inf)
        common = configurations.common(sure)
        planned = common[: min((int(row["planned"]) for row in sure if configurations.logs(row)), default=0)]
        in_launches = np.full((len(sure), len(planned)), math.nan)
        for at, row in enumerate(sure):
            by_launch = configurations.logs(row)
            known = configurations.spread_of(row)
            if known and common and all(name in by_launch for name in common):
                # Of one launch's log value, beside others'.
                terms = [(known.processes, known.processes_freedom), *known.among_others]
                variance[at], freedom[at] = total(terms)
                two_groups = known.processes_freedom <= len(planned) - 1
                most[at] = freedom[at] if known.members == 1 or (known.members == 2 and two_groups) else math.inf
            if freedom[at]:
                counts[at], logs[at] = len(common), np.mean([by_launch[name] for name in common])
                in_launches[at] = [by_launch[name] for name in planned]
            else:
                alone.append(at)
        if alone:  # the highest of many is looked for: of two views of a spread, the wider one
            stages = [np.log(first_stage(np.array(values(sure[at])), int(sure[at]["planned"]))) for at in alone]
            variances = [float(np.var(stage, ddof=1)) for stage in stages]
            own = np.array([len(stage) - 1.0 for stage in stages])
            believable = believed(variances, own, worth=0.0)
            added = max(0.0, float((believable.freedom - own).mean()) - DOUBTED)
            # What came over all at once is in their own spread, and in the launches of those that they are compared
            # with if they were measured in rounds too, whose spread is without it.
            elsewhere = np.array([bool(configurations.launches_names(sure[at])) for at in alone])
            more = np.where(elsewhere, counts[alone] / len(common), 0.0) if common else 0.0
            variance[alone] = (1 + more) * np.maximum(believable.variance, variances)
            freedom[alone] = own + added  # alike for all, or the noisier of two rows would be told apart sooner
        spread = Spread(variance, freedom, WARY) if sure else None
        return cls(place, spread, counts, logs, in_launches, over_baselines, most)

    def knows(self, row: ConfigurationRow) -> bool:
        """True where it, and its baseline where that counts, has enough repeats for an interval."""
        return all(name in self.place for name in self._whose(row))

    def log_values(self, rows: Sequence[ConfigurationRow], by: str) -> Values:
        """(q,) logarithms of what is compared: throughput, that of a worker, or efficiency. All must be known."""
        own = np.array([self.logs[self.place[str(row["configuration"])]] for row in rows])
        workers = np.log([float(row["workers"]) for row in rows])
        if by == "efficiency":
            baselines = [self.logs[self.place[str(row["baseline"])]] for row in rows]
            ideal = np.log([row["speedup"] / row["efficiency"] for row in rows])
            return np.asarray(own - baselines - ideal)
        return np.asarray(own - workers if by == "samples_per_worker_second" else own)

    def errors(self, rows: Sequence[ConfigurationRow]) -> tuple[Values, Values]:
        """(q, q) standard errors of the logarithm of each one's value over each other's, and their degrees of freedom;
        errors of 0 against itself. All must be known."""
        places = np.array([[self.place[name] for name in self._whose(row)] for row in rows]).T
        variance, freedom = (
            np.stack(each) for each in zip(*map(partial(self._against, others=places), places.T), strict=True)
        )
        variance *= self._closer(rows) ** 2
        if (few := self.by_launch.shape[1] - 1) > 0:
            values, count = self.by_launch[places[0]], self.counts[places[0]]
            values = values - self.by_launch[places[1]] if self.over_baselines else values
            own = np.stack([(values - one).var(axis=1, ddof=1) for one in values])  # nan where either is alone
            drawn, known = moderated(variance * count, freedom, own, few)
            most = self.most[places[0]]
            known = np.minimum(known, np.maximum(few, np.maximum(most[:, None], most)))
            shared = np.isfinite(own) & (variance > 0)
            variance, freedom = np.where(shared, drawn / count, variance), np.where(shared, known, freedom)
        return np.sqrt(variance), freedom

    def _closer(self, rows: Sequence[ConfigurationRow]) -> Values:
        """(q, q) by how much narrower two are held against each other whose launches were all of the same processes:
        their start falls on both alike. Where speed-ups are compared, of one baseline."""
        alike: dict[tuple[object, ...], list[int]] = {}
        for at, row in enumerate(rows):
            if own := configurations.launches_names(row):
                alike.setdefault((*own, self.over_baselines and row["baseline"]), []).append(at)
        factors = np.ones((len(rows), len(rows)))
        for members in alike.values():
            for at, other in itertools.combinations(members, 2):
                factors[at, other] = factors[other, at] = configurations.share_of_processes(rows[at], rows[other])
        return factors

    def judged(self, pairs: Sequence[tuple[ConfigurationRow, ConfigurationRow]]) -> list[JudgedRatio]:
        """Each ratio of throughput, judged among all of these. All must be known."""
        if not pairs:
            return []
        assert self.spread is not None
        a, b = (np.array([self.place[str(row["configuration"])] for row in side]) for side in zip(*pairs, strict=True))
        terms = (a, 1 / self.counts[a]), (b, 1 / self.counts[b])
        pooled = self.spread.p_values(self.logs[a] - self.logs[b], *terms)
        own = [configurations.p_value(*pair) for pair in pairs]  # by the same processes, what comes over these cancels
        p_values = [p if paired is None else paired for p, paired in zip(pooled, own, strict=True)]
        changed, tests = steps(p_values, FALSE_ALARMS)
        halves = self.spread.half_widths(1 - FALSE_ALARMS / tests, *terms)
        found = []
        for pair, is_changed, half, count in zip(pairs, changed, halves.tolist(), tests.tolist(), strict=True):
            ratio, within = over(*pair).mean, configurations.launches_ratio(*pair, 1 - FALSE_ALARMS / count)
            low, high = ratio * math.exp(-half), ratio * math.exp(half)
            if within and within.low is not None and within.high is not None:
                low, high = within.low, within.high
            found.append(JudgedRatio(bool(is_changed), low, high, count))
        return found

    def _against(self, own: NDArray[np.intp], others: NDArray[np.intp]) -> tuple[Values, Values]:
        """(q,) variances and degrees of freedom. `own`: (k,), the places of one, and of its baseline where that counts;
        `others`: (k, q)."""
        assert self.spread is not None
        # log value = log speed, less that of the baseline. Whatever stands on both sides cancels.
        whose = np.concatenate([np.broadcast_to(own[:, None], others.shape), others])
        signs = np.array([1, -1, -1, 1] if self.over_baselines else [1, -1])[:, None]
        same = whose[:, None] == whose
        first = ~np.array([same[index, :index].any(axis=0) for index in range(len(whose))])
        factors = first * (same * signs).sum(axis=1) ** 2 / self.counts[whose]
        with np.errstate(invalid="ignore"):  # 0 / 0 where everything cancels
            variance, freedom = self.spread.of_sum(*zip(whose, factors, strict=True))
        return variance, np.nan_to_num(freedom, nan=1.0)

    def _whose(self, row: ConfigurationRow) -> list[str]:
        own = str(row["configuration"])
        return [own, str(row["baseline"])] if self.over_baselines else [own]


def holm(p_values: ArrayLike) -> Values:
    """(m,) p-values -> p-values corrected for being m of them: one is kept where this is at most the level."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def steps(p_values: ArrayLike, level: float) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """(m,) p-values -> (m,) which of them Holm's procedure keeps at `level`, and (m,) for how many tests each is
    corrected: an interval of confidence 1 - level / tests says the same as the verdict."""
    kept = holm(p_values) <= level
    rank = np.argsort(np.argsort(p_values, kind="stable"))
    return kept, np.where(kept, len(kept) - rank, max(1, int((~kept).sum())))


# The highest mean of many is partly luck, so "the best" is a set: everything whose distance to the best may be nothing.
# Of each configuration it is tested whether it may be the best of its row: against each of its rivals, with Student's t
# of the spread of the two as spread.py believes it, its smallest p-value times the number of rivals. Of these p-values
# of all configurations of the study Holm's procedure (Scand. J. Stat. 6, 1979) takes those that hold together: once one
# is shown to be slower, the others are tested for fewer. Where all are equal, each ordered pair counts, as it must: any
# may be the highest by luck (Hsu's comparisons with the best, Ann. Stat. 12, 1984, protect the true best alone). Bounds
# belong to these tests (Strassburger and Bretz, Stat. Med. 27, 2008): an upper bound of exactly 1 says that it is
# slower, and those of the others hold at once, for as many as are left.
#
#     samples_per_second         the fastest
#     efficiency                 speed-up over the ratio of workers, of configurations with more than one worker
#     samples_per_worker_second  the cheapest where every worker costs the same

DOUBTED = 0.25  # of the degrees of freedom that the others add to one's own, where spreads are very unlike
WARY = 1.0  # a difference has the fewest degrees of freedom that are in it
FALSE_ALARMS = 0.05  # of studies of equal configurations, in which any is called worse than another
QUANTITIES = ("samples_per_second", "efficiency", "samples_per_worker_second")
BEST, ALIKE, WORSE, WORST, NO_INTERVAL = "best", "indistinguishable", "worse", "worst", "no interval"
NAMES = ("model", "configuration", "series", "batch", "workers", "n")
COLUMNS = (*NAMES, "work", "place", "value", "ratio", "ratio_low", "ratio_high", "verdict")
BEST_COLUMNS = (
    *NAMES,
    "work",
    "value",
    "value_low",
    "value_high",
    "ratio",
    "ratio_low",
    "ratio_high",
    "indistinguishable",
    "without_interval",
    "among",
)


@once
def best(results: Results, by: str = "samples_per_second") -> pd.DataFrame:
    """A row of BEST_COLUMNS for each model that has anything to rank, in the order of their names; for each work of it
    (by_work) where there are several, that of most configurations first, with what it is in `work`.

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


@once
def ranking(results: Results, by: str = "samples_per_second") -> pd.DataFrame:
    """A row of COLUMNS for each configuration that may be ranked, the highest value of each model and work first.

    `ratio` is to the best of the others, with its simultaneous interval. Left out is what failed, failed parity, is
    held back by this machine or oversubscribed; of efficiency also what has no speed-up. `by`: one of QUANTITIES.
    """
    rows: list[ConfigurationRow] = [row for row in results.rows if row["n"]]
    uncertainty = Uncertainty.of_rows(rows, over_baselines=by == "efficiency")
    groups: list[list[ConfigurationRow]] = []
    names: list[str] = []
    for model in results.models:
        works = by_work(row for row in rows if row["model"] == model and _competes(row, by))
        groups += works
        names += [name(ours[0]) if len(works) > 1 else "" for ours in works]
    ranked: list[tuple[Any, ...]] = []
    for ours, work in zip(_in_order(groups, by, uncertainty), names, strict=True):
        for index, (row, low, high) in enumerate(ours):
            rival = ours[0 if index else 1][0] if len(ours) > 1 else None
            ratio = None if rival is None else _value(row, by) / _value(rival, by)
            verdict = _verdict(index, high) if uncertainty.knows(row) else NO_INTERVAL
            ranked.append((*values_of(row, NAMES), work, index + 1, _value(row, by), ratio, low, high, verdict))
    kinds: dict[str, Any] = dict.fromkeys(("model", "configuration", "series", "work", "verdict"), "string")
    kinds |= dict.fromkeys(("batch", "workers", "n", "place"), "Int64")
    return typed(ranked, {name: kinds.get(name, "float64") for name in COLUMNS})


def _in_order(
    groups: Sequence[Sequence[ConfigurationRow]], by: str, uncertainty: Uncertainty
) -> Iterator[list[tuple[ConfigurationRow, float | None, float | None]]]:
    """(row, bounds of its ratio to the best of the others) of each group, the highest value first; all bounds of all
    groups hold at once."""
    ordered = [sorted(group, key=lambda row: -_value(row, by)) for group in groups]
    known = bounds([[row for row in ours if uncertainty.knows(row)] for ours in ordered], by, uncertainty)
    for ours in ordered:
        yield [(row, *known.get(str(row["configuration"]), (None, None))) for row in ours]


def _competes(row: ConfigurationRow, by: str) -> bool:
    if row["oversubscribed"] or row["not_comparable"]:
        return False
    if by != "efficiency":
        return True
    return known(row["efficiency"]) and int(row["workers"]) > 1 and row["baseline"] != row["configuration"]


def _value(row: ConfigurationRow, by: str) -> float:
    if by == "samples_per_worker_second":
        return float(row["samples_per_second"]) / int(row["workers"])
    return float(row["efficiency" if by == "efficiency" else "samples_per_second"])


def _verdict(index: int, high: float | None) -> str:
    return BEST if index == 0 else ALIKE if high is None or high > 1 else WORSE


@once
def verdicts_of_rows(results: Results) -> dict[str, str]:
    """Configuration -> the verdict of its standing."""
    return {name: standing.verdict for name, standing in standings(results).items()}


class Standing(NamedTuple):
    """A configuration beside the highest mean of its row, `beside`: `ratio` of their throughputs, with its corrected
    95 % interval, None with fewer than 3 repeats. That of the highest mean itself is to the next. `among`: in the row.
    """

    verdict: str
    ratio: float
    low: float | None
    high: float | None
    beside: str
    among: int

    @property
    def kind(self) -> str:
        return kind_of(self.verdict, self.ratio, self.low, self.high)


@once
def standings(results: Results) -> dict[str, Standing]:
    """row_standings() of all configurations of a study."""
    return row_standings(results.rows)


def row_standings(rows: Sequence[ConfigurationRow]) -> dict[str, Standing]:
    """Configuration -> BEST, ALIKE, WORSE, WORST or NO_INTERVAL by throughput among those of its model, batch size and
    work: a row of the tables. One alone in its row has none; WORST is the slowest of three or more if it is WORSE.

    The verdicts of all rows of a study hold together: where all configurations of each row are equally fast, any of
    them is called WORSE in at most FALSE_ALARMS of studies.
    """
    competing = [row for row in rows if row["n"] and _competes(row, "samples_per_second")]
    uncertainty = Uncertainty.of_rows([row for row in rows if row["n"]], over_baselines=False)
    groups = grouped(competing, lambda row: (str(row["model"]), int(row["batch"])))
    alike = [ours for group in groups.values() for ours in by_work(group) if len(ours) > 1]
    found: dict[str, Standing] = {}
    for ours in _in_order(alike, "samples_per_second", uncertainty):
        speeds = [float(row["samples_per_second"]) for row, *_ in ours]
        for index, (row, low, high) in enumerate(ours):
            rival = 0 if index else 1
            name, beside = str(row["configuration"]), str(ours[rival][0]["configuration"])
            verdict = NO_INTERVAL if index > 0 and high is None else _verdict(index, high)
            found[name] = Standing(verdict, speeds[index] / speeds[rival], low, high, beside, len(ours))
        if len(ours) > 2 and found[name].verdict == WORSE:
            found[name] = found[name]._replace(verdict=WORST)
    return found


# Verdicts as people read them. The highest mean is the fastest where all that were tested against it are slower. A mean
# that is more than NEAR behind is probably slower, though that is not proven; where the corrected interval also holds a
# gain of more than NEAR it is too close to call.

NEAR = 0.10
FASTEST, CLOSE, SLOWER, PROBABLY, UNTESTED = "fastest", "too close to call", "slower", "probably slower", "not tested"
HIGHEST = "highest mean"
WORDS = {  # quantity -> how one is called that is better and worse than another
    "samples_per_second": ("faster", "slower"),
    "efficiency": ("more efficient", "less efficient"),
    "samples_per_worker_second": ("cheaper", "dearer"),
}


def kind_of(verdict: str, ratio: float, low: float | None, high: float | None) -> str:
    """FASTEST, HIGHEST (others may be as fast), CLOSE, SLOWER, PROBABLY or UNTESTED. `ratio`: to the highest mean, of
    that itself to the next; `low` and `high`: its corrected bounds."""
    if verdict == NO_INTERVAL or low is None or high is None or math.isnan(low + high):
        return UNTESTED
    if verdict == BEST:
        return FASTEST if low >= 1 else HIGHEST
    if verdict in (WORSE, WORST):
        return SLOWER
    return PROBABLY if 1 - ratio > NEAR >= high - 1 else CLOSE


def in_words(standing: Standing, count: str) -> str:
    """`too close to call (up to 4.1 % faster)`, `probably slower (38 %), not proven with 3 repeats` (the last:
    `count`)."""
    less, high = f"slower ({two_figure_percentage(1 - standing.ratio)} %)", standing.high or 1.0
    untested = f"{UNTESTED} ({count})"
    return {
        FASTEST: FASTEST,
        HIGHEST: HIGHEST,
        CLOSE: f"{CLOSE} (up to {two_figure_percentage(high - 1)} % faster)",
        SLOWER: less,
        PROBABLY: f"probably {less}, not proven with {count}",
        UNTESTED: f"{HIGHEST}, {untested}" if standing.verdict == BEST else untested,
    }[standing.kind]


def corrected(low: float | None, high: float | None) -> str:
    """`[0.92, 1.004]`, which holds 1, `[0.61, below 1]`, which is slower; of an unknown interval ""."""
    if low is None or high is None:
        return ""
    places = next((places for places in (2, 3, 4) if round(high, places) != 1), 2)
    return f"[{low:.2f}, {'below 1' if high <= 1 else f'{high:.{places}f}'}]"


def bounds(
    groups: Sequence[Sequence[ConfigurationRow]], by: str, uncertainty: Uncertainty
) -> dict[str, tuple[float, float]]:
    """Configuration -> bounds of its ratio to the best of the others of its group; none where there are no others.

    The upper bounds of all groups hold at once, and so do the lower ones.
    """
    tested = [rows for rows in groups if len(rows) > 1]
    if not tested:
        return {}
    differences = []
    for rows in tested:
        logs, (error, freedom) = uncertainty.log_values(rows, by), uncertainty.errors(rows)
        gaps = logs[:, None] - logs
        np.fill_diagonal(gaps, np.inf)  # nothing is its own rival
        np.fill_diagonal(error, 1.0)
        differences.append((gaps, error, freedom))
    chances = [(len(gaps) - 1) * stdtr(freedom, -np.abs(gaps) / error) for gaps, error, freedom in differences]
    behind = [np.where(gaps < 0, p, 1.0).min(axis=1) for p, (gaps, _, _) in zip(chances, differences, strict=True)]
    slower = holm(np.concatenate(behind)) <= FALSE_ALARMS
    count, left = len(slower), int((~slower).sum())
    found: dict[str, tuple[float, float]] = {}
    for rows, (gaps, error, freedom) in zip(tested, differences, strict=True):
        worse, slower = slower[: len(rows)], slower[len(rows) :]
        each, late = (stdtrit(freedom, 1 - FALSE_ALARMS / (many * (len(rows) - 1))) for many in (count, left))
        highs = np.where(worse, 1.0, np.exp((gaps + late * error).min(axis=1)))
        least = np.where(worse, np.inf, gaps - each * error).min(axis=1)  # infinite: nothing else may be the best
        lows = np.exp(np.minimum(least, 0.0))
        names = (str(row["configuration"]) for row in rows)
        found |= {name: (float(low), float(high)) for name, low, high in zip(names, lows, highs, strict=True)}
    return found
