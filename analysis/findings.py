"""Findings: reasons to doubt a study's numbers, and the facts that detectors look at."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow, as_rows, grouped
from analysis.text import first_few

WRONG, DOUBT, NOTE = SEVERITIES = ("wrong", "doubt", "note")  # as they are stored
WORDS = {WRONG: "error", DOUBT: "warning", NOTE: "info"}  # and as they are read
MOST_NAMES = 3
Row = ConfigurationRow


@dataclass(frozen=True)
class Finding:
    """One reason to doubt a study's numbers. `wrong`: a comparison that must not be made; `doubt`: one that may
    mislead; `note`: to be known.

    `text` and `title` are plain, and hold names that others wrote: whoever shows them escapes them.
    """

    flaw: str  # of the published studies, "F13", or a word of our own, "drift"
    title: str  # a few words
    text: str  # what was seen, with its figures, and what follows from it
    severity: str  # one of SEVERITIES
    configurations: tuple[str, ...] = ()  # ids; none: the study as a whole

    @property
    def published(self) -> bool:
        """True where the flaw is one of the published studies': F1 to F28 of docs/internals/flaws.md."""
        return self.flaw[:1] == "F" and self.flaw[1:].isdigit()

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity {self.severity!r} is none of {', '.join(SEVERITIES)}")


def about(flaw: str, title: str, text: str, severity: str, rows: Iterable[ConfigurationRow]) -> Finding:
    """A finding about these configurations."""
    return Finding(flaw, title, text, severity, tuple(dict.fromkeys(str(row["configuration"]) for row in rows)))


def name_of(row: ConfigurationRow) -> str:
    """`resnet18, horovod, 2 workers, fp32, batch 32`."""
    return f"{row['model']}, {row['series']}, batch {row['batch']}"


def named(rows: Sequence[ConfigurationRow], among: Sequence[ConfigurationRow] = ()) -> str:
    """`resnet18, horovod, 2 workers, fp32, batch 32; ... and 5 more`; `all` where it is all of `among`."""
    if 1 < len(among) == len(rows):
        return "all"
    names = list(dict.fromkeys(map(name_of, rows)))
    return first_few(names, MOST_NAMES)


def count(number: int, what: str) -> str:
    """`1 configuration`, `3 configurations`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, each once."""
    return sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))


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
    def on_gpus(self) -> list[Row]:
        """Those of `rows` with several workers on GPUs."""
        return [row for row in self.rows if row["device"] == "cuda" and int(row["workers"]) > 1]

    def among(self, names: Container[str]) -> list[Row]:
        """Those of `rows` that are of these configurations."""
        return [row for row in self.rows if row["configuration"] in names]

    @property
    def runs(self) -> pd.DataFrame:
        """The trials that trained in order to be measured."""
        return self.results.runs

    @cached_property
    def facts(self) -> dict[str, list[dict[Any, Any]]]:
        """Configuration -> the facts (details.FACTS) of each of its trials; none where records are older."""
        return grouped(as_rows(self.results.details.facts), lambda fact: str(fact["configuration"]))

    @cached_property
    def pairs(self) -> list[tuple[Row, Row]]:
        """(configuration, its baseline) for each that has a speed-up over another one."""
        by_id = {row["configuration"]: row for row in self.rows}
        candidates = ((row, by_id.get(row["baseline"] or "")) for row in self.rows if row["speedup"] == row["speedup"])
        return [(row, base) for row, base in candidates if base is not None and base is not row]

    def fact(self, row: Row, name: str) -> list[Any]:
        """Values of one fact, over the trials of a configuration that know it."""
        known = (fact[name] for fact in self.facts.get(str(row["configuration"]), ()))
        return [value for value in known if value is not None and value == value and value != ""]


def simultaneous(comparisons: int) -> float:
    """The confidence of each of so many two-sided intervals if one bound of each is looked at (Bonferroni)."""
    return 1 - 2 * FALSE_ALARMS / max(1, comparisons)
