"""What A measured and B should hold, and does not: a check that passes for want of a measurement is none.

A configuration is missing in B where B's study plans it and no record of it is there, or where its records there cannot
be read. What B's study no longer plans was taken out by somebody, and is told as being in A only (compared.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from analysis.compare.pairs import Pair, Pairing, Row
from analysis.frames.results import Results
from scaling_study.stats.intervals import FEWEST_REPEATS

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


def find(pairing: Pairing, b: Results) -> list[Missing]:
    """In the order of A; those that are paired last. Only what was measured in A can be missed."""
    broken, why = _unreadable(b), _reasons(pairing, b)
    missing = [(row, why(_id(row))) for row in pairing.only_a if row["n"]]
    missing = [(row, UNREADABLE if reason and _id(row) in broken else reason) for row, reason in missing]
    missing += [(pair.a, FEW) for pair in pairing.pairs if _untested(pair, broken)]
    return [Missing(_id(row), label(row), reason) for row, reason in missing if reason]


def label(row: Row) -> str:
    """`resnet18, horovod, 2 workers, fp16, batch 64`."""
    return f"{row['model']}, {row['series']}, batch {row['batch']}"


def _id(row: Row) -> str:
    return str(row["configuration"])


def _reasons(pairing: Pairing, b: Results) -> Callable[[str], str]:
    """An id of A -> why B has nothing of it; empty where B's study does not plan it.

    Where B plans some of A's ids, ids say what it plans. Where it plans none (another machine, another window), they
    agree at most but for their digests, and each of B's that is without a record stands for one of A's.
    """
    planned = b.study.configurations
    if planned is None:
        return lambda name: UNSAID
    unseen, ids = set(b.unseen), {_id(row) for row in (*(pair.a for pair in pairing.pairs), *pairing.only_a)}
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


def _untested(pair: Pair, broken: Set[str]) -> bool:
    """Whether it could have been tested, had all of its records in B been readable."""
    return pair.a["n"] >= FEWEST_REPEATS > pair.b["n"] > 0 and _id(pair.b) in broken


def _unreadable(read: Results) -> set[str]:
    """The configurations in the folders of whose trials a record could not be read."""
    return {name for line in read.skipped for name in FOLDER.findall(line)}


def sentences(missing: Sequence[Missing], most: int) -> Iterator[str]:
    """`Missing in B: 1 configuration that A measured (...). ...`, at most so many of them by name."""
    if missing:
        names = "; ".join(map(str, missing[:most])) + (
            f" and {len(missing) - most} more" if len(missing) > most else ""
        )
        yield (
            f"**Missing in B**: {len(missing)} configuration{'s' * (len(missing) != 1)} that A measured: {names}. They "
            "are not compared."
        )
