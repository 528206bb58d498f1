"""Which configuration of one result is which of the other: by their ids, and where these differ by their trial keys.

An id holds the machine's fingerprint and the timed window, so the same configuration has another one elsewhere. Keys
are compared from the strictest reading to the loosest, and each pairs what is alone of its kind on both sides:

    id -> every key and the window -> every key -> all but what a machine decides, and the window -> all but what it
    decides

What a pair then still differs in is told (differences.py), not passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from analysis.frames.baseline import same, value_of, values_of
from analysis.frames.configurations import KEYS
from analysis.frames.row_types import ConfigurationRow

Row = ConfigurationRow  # a configuration: the columns of configurations.csv
OF_THE_MACHINE = ("machine", "device", "cores_per_worker", "data")  # what a plan resolves by looking at one
COMPARED = tuple(key for key in KEYS if key != "machine")
PORTABLE = tuple(key for key in KEYS if key not in OF_THE_MACHINE)


@dataclass(frozen=True)
class Pair:
    """The same configuration in both results."""

    a: Row
    b: Row

    @property
    def differing(self) -> list[str]:
        """The keys in which they differ all the same."""
        return [key for key in COMPARED if not same(value_of(self.a, key), value_of(self.b, key))]


@dataclass(frozen=True)
class Pairing:
    """Every configuration of both, in the order of A: paired, or in one of them only."""

    pairs: list[Pair]
    only_a: list[Row]
    only_b: list[Row]


def pair(a: Sequence[Row], b: Sequence[Row], window: Callable[[Row], Hashable]) -> Pairing:
    """`window`: when the timed window of a configuration ends, as something to compare."""
    ids = {row["configuration"]: row for row in b}
    pairs = [Pair(row, ids[row["configuration"]]) for row in a if row["configuration"] in ids]
    left_a, left_b = _without(a, [matched.a for matched in pairs]), _without(b, [matched.b for matched in pairs])
    for keys, timed in ((COMPARED, True), (COMPARED, False), (PORTABLE, True), (PORTABLE, False)):

        def place(row: Row, keys: tuple[str, ...] = keys, timed: bool = timed) -> Hashable:
            values = values_of(row, keys)
            return (values, window(row) if timed else None)

        alone_a, alone_b = _alone(left_a, place), _alone(left_b, place)
        pairs += [Pair(row, alone_b[where]) for where, row in alone_a.items() if where in alone_b]
        left_a, left_b = (
            _without(left_a, [matched.a for matched in pairs]),
            _without(left_b, [matched.b for matched in pairs]),
        )
    order = {row["configuration"]: index for index, row in enumerate(a)}
    return Pairing(sorted(pairs, key=lambda matched: order[matched.a["configuration"]]), left_a, left_b)


def nearly(left: Sequence[Row], others: Sequence[Row]) -> Counter[str]:
    """Key -> how many of these would have a counterpart but for this one key."""
    missed: Counter[str] = Counter()
    for row in left:
        differing = [Pair(row, other).differing for other in others]
        missed.update({keys[0] for keys in differing if len(keys) == 1})
    return missed


def _alone(rows: Sequence[Row], place: Callable[[Row], Hashable]) -> dict[Hashable, Row]:
    """Place -> the row, where it is the only one there."""
    counts = Counter(map(place, rows))
    return {where: row for row in rows if counts[where := place(row)] == 1}


def _without(rows: Iterable[Row], taken: Iterable[Row]) -> list[Row]:
    names = {row["configuration"] for row in taken}
    return [row for row in rows if row["configuration"] not in names]
