"""The configuration that is most worth measuring next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.frames.configurations import known, over, values
from analysis.frames.results import Results
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.statistics import ranking
from analysis.statistics.knee import FARTHEST, Extrapolation, extrapolations
from analysis.statistics.scaling_laws import FEWEST_COUNTS, Comparison, Declined, Family, Row, comparisons
from analysis.views.view import StudyTable, View
from scaling_study.stats.intervals import FEWEST_REPEATS

# Three rules, in this order:
#
# 1. the winner    Where the fastest configuration of a model is tied with the next (95 %), and at most MOST_REPEATS
#                  repeats of both would tell them apart if their means stay: those repeats.
# 2. the law       Of counts not run, up to twice the largest: the one that takes most off the doubt about four times
#                  the largest. The doubt is the spread of all draws of all tied laws; a measurement at one count, as
#                  noisy as the others, takes off what is correlated with it there (the variance that a linear
#                  regression over the draws explains).
# 3. a law at all  With fewer than four worker counts none can be fitted: the smallest power of two not run.
#
# A count that this machine has no room for is suggested only where nothing else is, and the sentence says so.

MOST_REPEATS = 30
WINNER, LAW, FIRST_LAW = "the winner", "the law", "a law at all"


@dataclass(frozen=True)
class Suggestion:
    """`rule`: one of the three. `keys`: the trial keys that say what to run, with `repeats` of what was run already."""

    rule: str
    sentence: str
    keys: dict[str, Any]


def suggestions(results: Results, compared: Sequence[Comparison | Declined]) -> list[Suggestion]:
    """The measurements most worth making, the most urgent first; may be empty."""
    chosen = [winner for model in results.models if (winner := _winner(results, model))]
    laws = [beyond for beyond in extrapolations(results) if beyond.compared.noise.errors is not None]
    if laws:
        counted = filter(None, (_count(law, results) for law in laws))
        best = max(counted, key=lambda pair: pair[0], default=None)
        return chosen + ([best[1]] if best else [])
    missing = filter(None, (_first(comparison.family, results) for comparison in compared))
    first = min(missing, key=lambda pair: pair[0], default=None)
    return chosen + ([first[1]] if first else [])


def _winner(results: Results, model: str) -> Suggestion | None:
    """Repeats that would separate the fastest configuration from the nearest one that is tied with it (95 %)."""
    rows = next(iter(ranking.by_work(results.rows_of(model))), [])
    fit = [row for row in rows if row["n"] >= 2 and not row["oversubscribed"] and not row["not_comparable"]]
    if len(fit) < 2:
        return None
    best = max(fit, key=lambda row: row["samples_per_second"])
    rivals = (row for row in fit if row is not best and _alike(best, row))
    other = max(rivals, key=lambda row: row["samples_per_second"], default=None)
    count = None if other is None else repeats_apart(best, other)
    if other is None or count is None or count > MOST_REPEATS:
        return None
    count = max(count, int(best["n"]) + 1, int(other["n"]) + 1)  # those that there are have not done it
    gap = 100 * (float(best["samples_per_second"]) / float(other["samples_per_second"]) - 1)
    had = " and ".join(map(str, sorted({int(best["n"]), int(other["n"])})))
    first, second = (f"{row['series']}, batch {row['batch']}" for row in (best, other))
    return Suggestion(
        WINNER,
        f"{model}: {first} and {second} differ by {gap:.1f} %, which {had} repeats do not resolve; "
        f"{count} repeats of each would, if the means stay.",
        {"configurations": [best["configuration"], other["configuration"]], "repeats": count},
    )


def _alike(best: Row, other: Row) -> bool:
    low = over(best, other).low
    return low is None or low <= 1


def repeats_apart(a: Row, b: Row) -> int | None:
    """How many repeats of each would leave 1 outside the 95 % interval of their ratio, at this ratio and spread; None
    where the spread is unknown, or more than a million would not do."""
    from scipy.special import stdtrit

    centred = [np.log(np.array(values(row)) / np.mean(values(row))) for row in (a, b)]
    freedom = sum(len(repeats) - 1 for repeats in centred)
    gap = abs(math.log(float(a["samples_per_second"]) / float(b["samples_per_second"])))
    if freedom < 1 or gap == 0:
        return None
    spread = math.sqrt(sum(float((repeats**2).sum()) for repeats in centred) / freedom)
    count = FEWEST_REPEATS
    while float(stdtrit(2 * count - 2, 0.975)) * spread * math.sqrt(2 / count) >= gap:
        count = max(count + 1, int(1.1 * count))
        if count > 1_000_000:
            return None
    return count


def _count(extrapolation: Extrapolation, results: Results) -> tuple[float, Suggestion] | None:
    """(doubt taken off, which count would) for one family."""
    compared, family = extrapolation.compared, extrapolation.compared.family
    largest, room = int(family.workers.max()), _room(family, results)
    counts = [count for count in extrapolation.counts if count <= 2 * largest]
    inside = [count for count in counts if room is None or count <= room]
    chosen = inside or counts
    if not chosen:
        return None
    target = FARTHEST * largest
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
        f"{family.name}: {chosen[best]} workers. Of all counts not run it would take most off the doubt about "
        f"{target}: from ±{196 * math.sqrt(doubt):.0f} % to about ±{196 * after:.0f} %{_no_room(chosen[best], room)}."
    )
    keys = _keys(family, chosen[best])
    return math.sqrt(doubt) - after, Suggestion(LAW, sentence, keys)


def _first(family: Family, results: Results) -> tuple[tuple[bool, int], Suggestion] | None:
    """(whether there is no room, how many counts are missing), and the next count, for a family without a law."""
    seen, count = {int(workers) for workers in family.workers}, 1
    missing = FEWEST_COUNTS - len(seen)
    if missing <= 0:
        return None
    while count in seen:
        count *= 2
    room = _room(family, results)
    more = f"; {missing - 1} more would still be missing" if missing > 1 else ""
    measured = f"{len(seen)} worker count{'s were' if len(seen) > 1 else ' was'} measured"
    sentence = (
        f"{family.name}: {count} worker{'s' * (count != 1)}. {measured}, and a scaling law takes {FEWEST_COUNTS}{more}"
        f"{_no_room(count, room)}."
    )
    lacks = room is not None and count > room
    return (lacks, missing), Suggestion(FIRST_LAW, sentence, _keys(family, count))


def _room(family: Family, results: Results) -> int | None:
    """How many workers this machine has room for; None where it is not the only host, or unknown."""
    row, machine = family.about, results.study.machine
    if known(row["hosts"]):
        return None
    if row["device"] == "cuda":
        return len(machine["gpus"]) if machine.get("gpus") is not None else None
    cores = machine.get("cores")
    share = int(row["cores_per_worker"]) if known(row["cores_per_worker"]) else 1
    return int(cores) // share if isinstance(cores, int) and share else None


def _no_room(count: int, room: int | None) -> str:
    return f" (this machine has room for {room})" if room is not None and count > room else ""


def _keys(family: Family, workers: int) -> dict[str, Any]:
    about = family.about
    batch = "global_batch" if family.strong else "batch_per_worker"
    return {key: about[key] for key in ("framework", "model", "allreduce", batch)} | {"workers": workers}


def listing(results: Results) -> Listing | None:
    """The suggestions as a table; None where there is nothing to suggest."""
    suggested = suggestions(results, comparisons(results))
    if not suggested:
        return None
    lines = [
        "First what decides the winner of a model, if at most 30 repeats do; then the worker count that reduces most "
        "the uncertainty at four times the largest count measured; where no family has four counts, the next count.",
    ]
    rows = [(suggestion.rule, suggestion.sentence) for suggestion in suggested]
    return notes.listing(results, "Most worth measuring next", ("what for", "what"), rows, lines)


VIEW = View("What is worth measuring next?", (StudyTable("next", listing, section=""),))
