"""Everything that is to be said of two results, worked out once: tables.py and report.py only put it into words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.compare import differences, failing, missing, origins, pairs, verdicts
from analysis.compare.differences import Difference
from analysis.compare.missing import Missing
from analysis.compare.pairs import Pairing, Row
from analysis.compare.verdicts import REGRESSIONS, SAYS_NOTHING, Verdicts
from analysis.execution import process_pool
from analysis.frames import results
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.frames.rows import as_rows
from scaling_study.records.store import BUSY_CORES

MOST_NAMES = 3
RUN = ["trial", "started_at", "samples_per_second"]  # alike in two results: it is the same run


class NothingToCompare(Exception):
    """The two have no configuration in common. The message says what they have."""


@dataclass(frozen=True)
class Comparison:
    """`refused`: the differences that matter and were not expected; empty with `anyway`, where all were.

    `missing`: what A measured and B should hold, and does not.
    """

    a: Results
    b: Results
    pairing: Pairing
    differences: list[Difference]
    refused: list[Difference]
    verdicts: Verdicts
    threshold: float
    doubts: tuple[str, ...]
    missing: tuple[Missing, ...] = ()

    @property
    def regressed(self) -> bool:
        return not self.verdicts.having(*REGRESSIONS).empty

    @property
    def says_nothing(self) -> bool:
        """Whether there is not one pair of which anything could be told."""
        return len(self.verdicts.having(*SAYS_NOTHING)) == len(self.verdicts.table)


def compare(a: Path, b: Path, threshold: float, expected: Sequence[str] = (), anyway: bool = False) -> Comparison:
    """`threshold`: the smallest relative change of interest. `expected`: kinds or names of differences that are meant.

    Raises NotResults for a folder that is none, NothingToCompare; warns SkippedRecord.
    """
    read_a, read_b = (results.read(folder, process_pool.available_processes()) for folder in (a, b))
    rows: list[list[Row]] = [as_rows(read.configurations, ConfigurationRow) for read in (read_a, read_b)]
    from_a, from_b = (
        origins.read(folder, (str(row["configuration"]) for row in side))
        for folder, side in zip((a, b), rows, strict=True)
    )
    windows = {id(row): window(row, of) for side, of in zip(rows, (from_a, from_b), strict=True) for row in side}
    pairing = pairs.pair(rows[0], rows[1], lambda row: windows[id(row)])
    if not pairing.pairs:
        raise NothingToCompare(_nothing((a, read_a), (b, read_b), pairing))
    differences_found = differences.find(pairing.pairs, from_a, from_b)
    refused = [
        difference
        for difference in differences_found
        if difference.matters and not anyway and not differences.expected(difference, expected)
    ]
    unmet = [
        word
        for word in expected
        if not any(differences.expected(difference, [word]) for difference in differences_found)
    ]
    remarks = [f"{word} was expected to differ, and does not." for word in unmet]
    remarks += _the_same_runs(read_a, read_b)
    remarks += [*differences.doubts(pairing.pairs, from_a, from_b), *_disturbed("A", read_a), *_disturbed("B", read_b)]
    judged = verdicts.judge(pairing.pairs, threshold)
    judged = failing.judged(judged, pairing.pairs, failing.of(read_a.runs), failing.of(read_b.runs))
    lost = tuple(missing.find(pairing, read_b))
    return Comparison(read_a, read_b, pairing, differences_found, refused, judged, threshold, tuple(remarks), lost)


def window(row: Row, known: origins.Origins) -> frozenset[tuple[str, frozenset[str]]]:
    """When the timed window of a configuration ends, as its records say it."""
    facts = known.get(str(row["configuration"]), {})
    return frozenset((name, values) for (kind, name), values in facts.items() if kind == origins.WINDOW)


def left_over(pairing: Pairing) -> list[str]:
    """A sentence for each side that has configurations which the other has not."""
    sides = (("A", pairing.only_a, pairing.only_b), ("B", pairing.only_b, pairing.only_a))
    return [_left(side, left, others) for side, left, others in sides if left]


def _left(side: str, left: Sequence[Row], others: Sequence[Row]) -> str:
    names = [missing.label(row) for row in left[:MOST_NAMES]]
    more = f" and {len(left) - MOST_NAMES} more" if len(left) > MOST_NAMES else ""
    near = [f"{count} but for {key}" for key, count in pairs.nearly(left, others).most_common(MOST_NAMES)]
    counterpart = f" They would have a counterpart: {', '.join(near)}." if near else ""
    return f"Only in {side}: {len(left)} configuration{'s' * (len(left) != 1)} ({'; '.join(names)}{more}).{counterpart}"


def _nothing(a: tuple[Path, Results], b: tuple[Path, Results], pairing: Pairing) -> str:
    for (folder, read), rows in ((a, pairing.only_a), (b, pairing.only_b)):
        if not rows and read.skipped:
            return f"{folder} has no trial that can be read ({len(read.skipped)} cannot)"
        if not rows:
            return f"{folder} has no finished trial yet"
    return f"{a[0]} and {b[0]} have no configuration in common. {' '.join(left_over(pairing))}"


def _the_same_runs(a: Results, b: Results) -> list[str]:
    """Copied records say nothing about another run; somebody may have named the wrong folder."""
    ours, theirs = (set(read.runs.dropna(subset=RUN)[RUN].itertuples(index=False, name=None)) for read in (a, b))
    same = len(ours & theirs)
    return [f"{same} of the {len(ours)} runs of A are in B too: copies, not measured again."] if same else []


def _disturbed(side: str, read: Results) -> list[str]:
    others = read.runs.busy_elsewhere_cores.dropna()
    busy = others[others > BUSY_CORES]
    if busy.empty:
        return []
    return [
        f"The machine of {side} was not quiet: during {len(busy)} of {len(others)} runs other processes kept more than "
        f"{BUSY_CORES} cores busy, {busy.max():.1f} at most."
    ]
