"""The measurement that is most worth making next: what it decides, the key to edit, and the time that it takes.

1. the target     The soonest configuration is too close to the next to call: seeds of both that tell them apart, or
                  closer evaluations where these leave more open than the seeds do.
2. the winner     The same of the fastest configuration of a model that is trained to no target: launches of both.
3. the margin     Else, where ratios to a baseline miss the margin that the study asks for: launches that reach it.
4. the law        Of worker counts not run, up to twice the largest: the one that takes most off the doubt about four
                  times the largest. The doubt is the spread of all draws of all laws that are too close to call; a
                  measurement at one count, as noisy as the others, takes off what is correlated with it there (the
                  variance that a linear regression over the draws explains).
5. a law at all   With fewer than four worker counts none can be fitted: the smallest power of two not run.

Nothing is suggested that more than MOST_REPEATS repeats would take, or MOST_LAUNCHES launches, or more workers than
this machine has room for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.frames.configurations import batch_words, known, over, values
from analysis.frames.results import Results, once, without_kind
from analysis.frames.rows import ConfigurationRow, by_configuration
from analysis.frames.trials import began
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.statistics import estimates, ranking
from analysis.statistics.knee import FARTHEST, Extrapolation, extrapolations
from analysis.statistics.scaling_laws import (
    FEWEST_COUNTS,
    Declined,
    Family,
    LawComparison,
    comparisons,
    host_room,
)
from analysis.text import roughly
from analysis.views.target import BEST, TIED, times_of, trained_configurations
from analysis.views.tasks import tasks
from analysis.views.view import StudyTable, View
from scaling_study.stats.intervals import FEWEST_REPEATS

MOST_REPEATS, MOST_LAUNCHES = 30, 100
TARGET, WINNER, MARGIN, LAW, FIRST_LAW = "the target", "the winner", "the margin", "the law", "a law at all"


@dataclass(frozen=True)
class Suggestion:
    """`rule`: one of the five. `sentence`: what to run, and why."""

    rule: str
    sentence: str


def suggestions(results: Results, compared: Sequence[LawComparison | Declined]) -> list[Suggestion]:
    """The measurements most worth making, the most urgent first; may be empty."""
    aimed = trained_configurations(results)
    chosen, trained = list(_targets(results)), {*aimed.model[aimed.target != ""]}
    races = (_winner(results, model) for model in results.models if model not in trained)
    chosen += [race for race in races if race]
    if not chosen and not trained and (margin := _margin(results)):
        chosen.append(margin)
    laws = [beyond for beyond in extrapolations(results) if beyond.compared.noise.errors is not None]
    counted = [_count(law, results) for law in laws] or [_first(one.family, results) for one in compared]
    best = max(filter(None, counted), key=lambda pair: pair[0], default=None)
    return chosen + ([best[1]] if best else [])


def _targets(results: Results) -> Iterator[Suggestion]:
    """Of each task whose soonest configuration has rivals: what tells it from the nearest."""
    trained = by_configuration(results.details.trained)
    for task in tasks(results):
        best, rivals = (
            [row for row in task.having(verdict) if known(row["seconds_to_target"])] for verdict in (BEST, TIED)
        )
        if not best or not rivals:
            continue
        pair = best[0], min(rivals, key=lambda row: float(row["seconds_to_target"]))
        names = [str(row["configuration"]) for row in pair]
        first, second = (f"{without_kind(str(row['series']))}, global batch {row['global_batch']}" for row in pair)
        between = [times_of(trained[name]) for name in names]
        seeds = sum(float(np.var(times.logs, ddof=1)) for times in between)
        whole, seen = sum(times.variance for times in between), min(len(times.after) for times in between)
        start = f"{task.whose} to {task.target}: {first} and {second} are too close to call with {seen} seeds"
        if whole - seeds > seeds:
            every = results.by_name[names[0]]["train_evaluate_every"]
            half = f" (now {every:g})" if known(every) else ""
            why = "the time between two evaluations leaves more open than the seeds do"
            yield Suggestion(TARGET, f"{start}: {why}. Halve `evaluate_every` of `train:`{half}.")
            continue
        gap = abs(math.log(float(pair[0]["seconds_to_target"]) / float(pair[1]["seconds_to_target"])))
        count = _count_apart(gap, math.sqrt(whole / 2))
        if count is not None and count <= MOST_REPEATS:
            count = max(count, seen + 1)
            yield Suggestion(
                TARGET,
                f"{start}; {count} of each would tell them apart, if means and spread stay (`seeds` of "
                f"`train:`{_takes(results, names, count - seen)}).",
            )


def _winner(results: Results, model: str) -> Suggestion | None:
    """Repeats that would separate the fastest configuration from the nearest one that is too close to it to call."""
    rows = next(iter(ranking.by_work(results.rows_of(model))), [])
    fit = [row for row in rows if row["n"] >= 2 and not row["oversubscribed"] and not row["not_comparable"]]
    if len(fit) < 2:
        return None
    best = max(fit, key=lambda row: row["samples_per_second"])
    rivals = [
        row for row in fit if row is not best and (over(best, row).low or 0.0) <= 1
    ]  # too close to call, or not known
    other = max(rivals, key=lambda row: row["samples_per_second"], default=None)
    count = None if other is None else repeats_apart(best, other)
    if other is None or count is None or count > MOST_REPEATS:
        return None
    count = max(count, int(best["n"]) + 1, int(other["n"]) + 1)  # those that there are have not done it
    gap = 100 * (float(best["samples_per_second"]) / float(other["samples_per_second"]) - 1)
    had = " and ".join(map(str, sorted({int(best["n"]), int(other["n"])})))
    first, second = (f"{row['series']}, {batch_words(row)}" for row in (best, other))
    more = count - min(int(best["n"]), int(other["n"]))
    takes = _takes(results, (best["configuration"], other["configuration"]), more)
    return Suggestion(
        WINNER,
        f"{model}: {first} and {second} differ by {gap:.1f} %, which {had} {results.repeats_word} do not resolve; "
        f"{count} of each would, if means and spread stay (`max_launches: {count}`{takes}).",
    )


def _takes(results: Results, names: Collection[str], more: int) -> str:
    """`, about 4 min more` for so many more launches of these configurations; empty where that is not known."""
    seconds = _launch_seconds(results).reindex(list(names)).dropna()
    return f", about {roughly(more * float(seconds.sum()))} more" if len(seconds) else ""


@once
def _launch_seconds(results: Results) -> pd.Series[float]:
    """Configuration -> seconds of a launch: from its start to the next one's, shared by all that it measures, the
    median over the repeats."""
    trials = results.runs[["configuration", "repeat"]].assign(began=began(results.runs))
    starts = began(results.trials).dropna().drop_duplicates().sort_values()
    took = dict(zip(starts, starts.diff().shift(-1).dt.total_seconds(), strict=True))
    trials = trials.dropna(subset="began")
    share = trials.began.map(took) / trials.groupby("began").began.transform("size")
    made: pd.Series[float] = share.groupby(trials.configuration).median()
    return made


def repeats_apart(a: ConfigurationRow, b: ConfigurationRow) -> int | None:
    """How many repeats of each would leave 1 outside the 95 % interval of their ratio, at this ratio and spread; None
    where the spread is unknown, or more than a million would not do."""
    centred = [np.log(np.array(values(row)) / np.mean(values(row))) for row in (a, b)]
    freedom = sum(len(repeats) - 1 for repeats in centred)
    gap = abs(math.log(float(a["samples_per_second"]) / float(b["samples_per_second"])))
    if freedom < 1:
        return None
    return _count_apart(gap, math.sqrt(sum(float((repeats**2).sum()) for repeats in centred) / freedom))


def _count_apart(gap: float, spread: float) -> int | None:
    """Values of each of two, with this standard deviation, whose means so far apart differ (95 %)."""
    from scipy.special import stdtrit

    count = FEWEST_REPEATS
    while float(stdtrit(2 * count - 2, 0.975)) * spread * math.sqrt(2 / count) >= gap:
        count = max(count + 1, int(1.1 * count))
        if gap == 0 or count > 1_000_000:
            return None
    return count


def _margin(results: Results) -> Suggestion | None:
    """Launches with which every ratio to a baseline would be as narrow as the study asks, where so many would do."""
    rows, target = results.by_name, results.study.target_interval
    asked = [width for width in estimates.widths(results) if known(rows[str(width.row["configuration"])]["speedup"])]
    against = {str(width.row["baseline"]) for width in asked if width.row["baseline"] != width.row["configuration"]}
    wide = [width for width in asked if width.half > target and known(width.repeats_needed)]
    count = max((int(width.repeats_needed or 0) for width in wide), default=0)
    had = min((int(width.row["n"]) for width in wide), default=0)
    if not against or not had < count <= MOST_LAUNCHES:
        return None
    names = {str(width.row["configuration"]) for width in wide} | against
    return Suggestion(
        MARGIN,
        f"{len(wide)} of {len(asked)} intervals are wider than ±{100 * target:.2g} %; {count} "
        f"{results.repeats_word} would reach it, if the spread stays (`max_launches: {count}`"
        f"{_takes(results, names, count - had)}).",
    )


def _count(extrapolation: Extrapolation, results: Results) -> tuple[float, Suggestion] | None:
    """(doubt taken off, which count would) for one family."""
    compared, family = extrapolation.compared, extrapolation.compared.family
    largest, room = int(family.workers.max()), host_room(family.about, results.study.machine)
    chosen = [count for count in extrapolation.counts if count <= min(2 * largest, room or math.inf)]
    if not chosen:
        return None
    target = extrapolation.farthest(FARTHEST)
    at = np.concatenate([np.log(law.rates(np.array([target, *chosen], dtype=float))) for law in extrapolation.drawn])
    doubt = float(at[:, 0].var())
    if not doubt:
        return None
    assert compared.noise.errors is not None
    noise = float(np.median(compared.noise.errors)) ** 2
    covariances = ((at[:, :1] - at[:, 0].mean()) * (at[:, 1:] - at[:, 1:].mean(axis=0))).mean(axis=0)
    taken = covariances**2 / (at[:, 1:].var(axis=0) + noise)
    best = int(taken.argmax())
    after = math.sqrt(max(0.0, doubt - float(taken[best])))
    sentence = (
        f"{family.name}: {chosen[best]} workers. Of all counts not run it would narrow the margin at "
        f"{target} workers most: from ±{196 * math.sqrt(doubt):.0f} % to about ±{196 * after:.0f} %."
    )
    return math.sqrt(doubt) - after, Suggestion(LAW, sentence)


def _first(family: Family, results: Results) -> tuple[float, Suggestion] | None:
    """(the more the fewer counts are missing, the next one) for a family without a law; None where this machine has no
    room for as many counts as a law takes."""
    seen, room = {int(workers) for workers in family.workers}, host_room(family.about, results.study.machine)
    missing = FEWEST_COUNTS - len(seen)
    if missing <= 0 or (room is not None and room < FEWEST_COUNTS):
        return None
    powers = [1 << power for power in range(FEWEST_COUNTS)]
    free = (count for count in (*powers, *range(1, powers[-1])) if count not in seen and count <= (room or count))
    count, more = next(free), f"; {missing - 1} more would still be missing" if missing > 1 else ""
    measured = f"{len(seen)} worker count{'s were' if len(seen) > 1 else ' was'} measured"
    sentence = (
        f"{family.name}: {count} worker{'s' * (count != 1)}. {measured}, and a scaling law takes {FEWEST_COUNTS}{more}."
    )
    return -missing, Suggestion(FIRST_LAW, sentence)


def listing(results: Results) -> Listing | None:
    """The suggestions as a table; None where there is nothing to suggest."""
    suggested = suggestions(results, comparisons(results))
    if not suggested:
        return None
    lines = [
        "First what decides the soonest to a target or the winner of a model, if at most "
        f"{MOST_REPEATS} repeats do; else the launches that reach the margin asked for, if at most {MOST_LAUNCHES} do. "
        "Then the worker count that reduces most the uncertainty at four times the largest count measured; where no "
        "family has four counts, the next count.",
    ]
    rows = [(suggestion.rule, suggestion.sentence) for suggestion in suggested]
    return notes.listing(results, "Most worth measuring next", ("what for", "what"), rows, lines)


VIEW = View("What is worth measuring next?", (StudyTable("next", listing, section=""),))
