"""What A measured and B should hold, and does not: a check that passes for want of a measurement is none.

A configuration is missing in B where B's study plans it and no record of it is there, or where its records there cannot
be read. What B's study no longer plans was taken out by somebody, and is told as being in A only (compared.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.compare.pairs import Pair, Pairing, Row
from analysis.results import Results
from scaling_study.intervals import FEWEST_REPEATS

UNREADABLE, FEW = "its records cannot be read", "some of its records cannot be read"
ABSENT, UNSAID = "planned, and without a record", "without a record, and B's study does not say what it plans"


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
    unmeasured = _unmeasured(b)
    found = [(row, _why(row, unmeasured, b)) for row in pairing.only_a if row["n"]]
    found += [(pair.a, FEW) for pair in pairing.pairs if _untested(pair, b)]
    return [Missing(str(row["configuration"]), label(row), why) for row, why in found if why]


def label(row: Row) -> str:
    """`resnet18, horovod, 2 workers, fp16, batch 64`."""
    return f"{row['model']}, {row['series']}, batch {row['batch']}"


def _why(row: Row, unmeasured: Sequence[str] | None, b: Results) -> str:
    """Why B has nothing of this configuration of A; empty where B's study does not plan it."""
    name = str(row["configuration"])
    meant = [name] if unmeasured is None else [one for one in unmeasured if _kind(one) == _kind(name)]
    if any(_unreadable(one, b) for one in meant):
        return UNREADABLE
    return "" if not meant else UNSAID if unmeasured is None else ABSENT


def _unmeasured(b: Results) -> list[str] | None:
    """The ids that B's study plans and has no record of; None where it does not say what it plans."""
    return None if b.study.configurations is None else list(b.unseen)


def _kind(configuration: str) -> str:
    """An id without its digits, which hold the machine and the window too and so are others elsewhere."""
    return configuration.rpartition("-")[0]


def _untested(pair: Pair, b: Results) -> bool:
    """Whether it could have been tested, had all of its records in B been readable."""
    return pair.a["n"] >= FEWEST_REPEATS > pair.b["n"] > 0 and _unreadable(str(pair.b["configuration"]), b)


def _unreadable(configuration: str, read: Results) -> bool:
    """Whether a record that could not be read lies in the folder of one of its trials."""
    return any(f"/{configuration}.r" in line for line in read.skipped)


def sentences(found: Sequence[Missing], most: int) -> Iterator[str]:
    """`Missing in B: 1 configuration that A measured (...). ...`, at most so many of them by name."""
    if found:
        names = "; ".join(map(str, found[:most])) + (f" and {len(found) - most} more" if len(found) > most else "")
        yield (
            f"**Missing in B**: {len(found)} configuration{'s' * (len(found) != 1)} that A measured: {names}. Whether "
            "they became slower cannot be told."
        )
