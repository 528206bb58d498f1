"""A sweep -> its combinations of keys: the matrix crossed, less `exclude`, plus `include`. Pure.

    matrix {a: [1, 2], b: [3, 4]}  -->  a1 b3, a1 b4, a2 b3, a2 b4
    exclude [{a: 1, b: 4}]         -->  a1 b3,        a2 b3, a2 b4       a partial match
    include [{a: 9}]               -->  a1 b3,        a2 b3, a2 b4, a9   whole trials

A line of YAML can ask for more combinations than there are atoms, so they are counted before any is made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from scaling_study.errors import StudyError
from scaling_study.quoting import quoted
from scaling_study.study.study import Study, Sweep

# Planning takes some 50 microseconds a configuration and a list of trials some 10 more and a kilobyte each: under 5 s
# and a few hundred MB at these limits, on a core of 2 GHz. At 10 s a trial so many would train for three weeks.
MAX_CONFIGURATIONS = 50_000
MAX_TRIALS = 200_000
MAX_MATCHES = 2_000_000  # of combinations with kinds of `exclude`; a look-up takes some 0.5 microseconds

Keys = dict[str, Any]
Problem = dict[str, None]  # the problems so far, each once, in order


def refuse_too_many(study: Study) -> None:
    """Raises StudyError, with the line and the number, for what would take minutes or more memory than there is."""
    sizes = [
        math.prod(map(len, sweep.matrix.values())) * bool(sweep.matrix or not sweep.include) for sweep in study.sweeps
    ]
    asked = [(size + len(sweep.include), sweep) for size, sweep in zip(sizes, study.sweeps, strict=True)]
    trials = [(size * sweep.measure.repeats, sweep) for size, sweep in asked]
    matches = [(size * len(_kinds(sweep)), sweep) for size, sweep in zip(sizes, study.sweeps, strict=True)]
    for counts, most, key, message in (
        (asked, MAX_CONFIGURATIONS, "matrix", "combinations; the limit is {most:,}"),
        (trials, MAX_TRIALS, "repeats", "trials, with every repeat; the limit is {most:,}"),
        (matches, MAX_MATCHES, "exclude", "combinations to compare with entries of exclude; the limit is {most:,}"),
    ):
        if (count := sum(number for number, _ in counts)) > most:
            _, worst = max(counts, key=lambda pair: pair[0])
            raise StudyError([f"{study.document.at((*worst.place, key))}: {count:,} {message.format(most=most)}"])


def combinations(study: Study, sweep: Sweep, problems: Problem) -> list[Keys]:
    """Every combination that the sweep asks for, with its fixed keys. What is wrong is added to `problems`."""
    product = (
        {**sweep.fixed, **dict(zip(sweep.matrix, values, strict=True))}
        for values in itertools.product(*sweep.matrix.values())
    )
    kinds = _kinds(sweep)
    kept, matched = [], set()
    for keys in product:
        if hits := [
            (names, named_values) for names in kinds if (named_values := tuple(map(keys.get, names))) in kinds[names]
        ]:
            matched.update(hits)
        else:
            kept.append(keys)
    if not sweep.matrix and sweep.include:
        kept = []  # a sweep of whole trials only
    for index, entry in enumerate(sweep.exclude):
        if _kind(entry) not in matched:
            line = study.document.at((*sweep.place, "exclude", index))
            problems[f"{line}: exclude {quoted(dict(entry))} matches nothing in the matrix"] = None
    result = [*kept, *({**sweep.fixed, **entry} for entry in sweep.include)]
    if not result:
        problems[f"{study.document.at(sweep.place)}: this sweep of {sweep.framework} has no trials left"] = None
    return result


def _kinds(sweep: Sweep) -> dict[tuple[str, ...], set[tuple[Any, ...]]]:
    """The entries of `exclude` by the keys that they name: one look-up for all that name the same ones."""
    kinds: dict[tuple[str, ...], set[tuple[Any, ...]]] = {}
    for names, values in map(_kind, sweep.exclude):
        kinds.setdefault(names, set()).add(values)
    return kinds


def _kind(entry: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    names: Sequence[str] = sorted(entry)
    return tuple(names), tuple(entry[name] for name in names)
