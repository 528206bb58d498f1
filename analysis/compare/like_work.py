"""Did two commands do like work? Samples of a step, learning rates, losses of the first steps, and doubts about ranks.

unlike work: a step of A has 32 samples, of B 64; the ratio is one of samples a second
the learning rate changes with the workers: 0.1 in A, 0.2 in B
losses of the first 8 steps are equal bit for bit in A and B
B: all ranks train on the same data: is a DistributedSampler missing?

Losses are those that backward was called on, averaged over the ranks. What was not seen is compared with nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd

from analysis.findings import count
from analysis.frames.details import Details
from analysis.frames.rows import as_rows
from scaling_study.records.schema import DOUBT

ROUNDING = 1e-4  # of a loss: another order of additions in 32 bits, over some steps
COARSE = 1e-2  # likewise, in 16 bits
SAME_RATE = 1e-6  # of a learning rate
Values = Sequence[float | None]


@dataclass(frozen=True)
class FirstSteps:
    """What was seen of the first steps of one command. `losses`: of each of its launches, mean of all ranks; `notes`:
    doubts about its ranks (scaling_study/observe/checks.py)."""

    losses: tuple[Values, ...] = ()
    learning_rates: Values = ()
    notes: tuple[str, ...] = ()


NOT_SEEN = FirstSteps()


@dataclass(frozen=True)
class Work:
    """The work of one command. `step_samples`: of all processes; None: not known."""

    label: str
    workers: int
    step_samples: int | None
    first_steps: FirstSteps = NOT_SEEN


def first_steps(details: Details, configuration: str) -> FirstSteps:
    """From the records of a configuration."""

    def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
        return as_rows(frame[frame.configuration == configuration])

    facts = sorted(rows(details.facts), key=lambda fact: int(fact["repeat"]))
    losses = tuple(fact["first_losses"] for fact in facts if fact["first_losses"])
    rates = next((fact["first_learning_rates"] for fact in facts), ())
    notes = dict.fromkeys(str(row["note"]) for row in rows(details.notes))
    return FirstSteps(losses, rates, tuple(note.removeprefix(DOUBT) for note in notes if note.startswith(DOUBT)))


def unlike(first: Work, second: Work) -> bool:
    """True where a step of one has more samples than one of the other."""
    return None not in (first.step_samples, second.step_samples) and first.step_samples != second.step_samples


def caveats(first: Work, second: Work) -> Iterator[str]:
    """What is to be known of the work of two commands whose speeds are compared, a sentence each."""
    a, b = first.label, second.label
    if unlike(first, second):
        yield (
            f"unlike work: a step of {a} has {first.step_samples} samples, of {b} {second.step_samples}; the ratio is "
            "one of samples a second"
        )
    yield from _of_learning_rates(first, second)
    if not unlike(first, second):
        yield from _of_losses(first, second)
    for side in (first, second):
        yield from (f"{side.label}: {note}" for note in side.first_steps.notes)


def _of_learning_rates(first: Work, second: Work) -> Iterator[str]:
    both = zip(first.first_steps.learning_rates, second.first_steps.learning_rates, strict=False)
    for step, (rate, other) in enumerate(both, start=1):
        if rate is not None and other is not None and difference(rate, other) > SAME_RATE:
            by_workers = first.workers != second.workers
            what = "the learning rate changes with the workers" if by_workers else "learning rates differ"
            late = f" in step {step}" if step > 1 else ""
            yield f"{what}: {rate:g} in {first.label}, {other:g} in {second.label}{late}"
            return


def _of_losses(first: Work, second: Work) -> Iterator[str]:
    launches, who = (first.first_steps.losses, second.first_steps.losses), f"{first.label} and {second.label}"
    for work, own in zip((first, second), launches, strict=True):
        if apart := [step for one, other in pairwise(own) if (step := _apart(one, other))]:
            yield (
                f"losses differ between launches of {work.label} itself, from step {min(apart)} on: without a seed "
                f"they do not show whether {who} train alike"
            )
            return
    ours, theirs = (next(iter(own), ()) for own in launches)
    known = [(one, other) for one, other in zip(ours, theirs, strict=False) if one is not None and other is not None]
    if not known:
        return
    most, steps = max(difference(*each) for each in known), f"losses of the first {count(len(known), 'step')}"
    if step := _apart(ours, theirs):
        share = 100 * difference(ours[step - 1], theirs[step - 1])
        yield (
            f"losses of {who} are apart from step {step} on (by {share:.2g} % there): another seed, other samples or "
            "another model"
        )
    elif most > ROUNDING:
        yield f"{steps} are close in {who} (to {100 * most:.2g} %), as arithmetic in 16 bits leaves them"
    elif most:
        yield f"{steps} are equal in {who} but for rounding (at most {most:.1g} of a loss)"
    else:
        yield f"{steps} are equal bit for bit in {who}"


def _apart(ours: Values, theirs: Values) -> int:
    """The first step, from 1, in which losses differ by more than arithmetic explains; 0: none."""
    steps = enumerate(zip(ours, theirs, strict=False), start=1)
    return next((step for step, (one, other) in steps if difference(one, other) > COARSE), 0)


def difference(one: float | None, other: float | None) -> float:
    """The distance of two numbers as a share of the larger; 0 where one is unknown."""
    if one is None or other is None or one == other:
        return 0.0
    return abs(one - other) / max(abs(one), abs(other))
