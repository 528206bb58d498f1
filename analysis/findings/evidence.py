"""What detectors look at: the configurations that were measured, each with the facts of its trials, read once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from analysis.findings.finding import Row
from analysis.frames.results import Results
from analysis.frames.rows import as_rows

RUN_COLUMNS = (
    *("trial", "configuration", "model", "find", "repeat", "status", "started_at", "launch"),
    *("samples_per_second", "samples_seen", "steps", "step_trend"),
    *("global_batch", "busy_elsewhere_cores", "achieved_over_target"),
)
T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)
FALSE_ALARMS = 0.05  # of studies in which there is nothing to find, by any one detector that compares throughputs


@dataclass(frozen=True)
class Evidence:
    """A study as detectors see it. A detector is a function of it, and yields findings."""

    results: Results

    @cached_property
    def rows(self) -> list[Row]:
        """The configurations of which at least one repeat is ok."""
        return [row for row in self.results.rows if row["n"]]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """RUN_COLUMNS of the trials that trained in order to be measured."""
        runs: pd.DataFrame = replace(self.results, trials=self.results.trials[list(RUN_COLUMNS)]).runs
        return runs

    @cached_property
    def facts(self) -> dict[str, list[dict[str, Any]]]:
        """Configuration -> the facts (facts.COLUMNS) of each of its trials; none where records are older."""
        facts: dict[str, list[dict[str, Any]]] = {}
        for fact in as_rows(self.results.details.facts):
            facts.setdefault(str(fact["configuration"]), []).append({str(key): value for key, value in fact.items()})
        return facts

    @cached_property
    def pairs(self) -> list[tuple[Row, Row]]:
        """(configuration, its baseline) for each that has a speed-up over another one."""
        by_id = {row["configuration"]: row for row in self.rows}
        candidates = ((row, by_id.get(row["baseline"] or "")) for row in self.rows if row["speedup"] == row["speedup"])
        return [(row, base) for row, base in candidates if base is not None and base is not row]

    def fact(self, row: Row, name: str) -> list[Any]:
        """What the trials of a configuration say of one thing, where they know it."""
        known = (fact[name] for fact in self.facts.get(str(row["configuration"]), ()))
        return [value for value in known if value is not None and value == value and value != ""]


def simultaneous(comparisons: int) -> float:
    """The confidence of each of so many two-sided intervals if one bound of each is looked at (Bonferroni)."""
    return 1 - 2 * FALSE_ALARMS / max(1, comparisons)


def grouped(rows: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    """Rows by what `key` makes of them, in their order."""
    groups: dict[Key, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
