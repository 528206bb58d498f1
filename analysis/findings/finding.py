"""A finding: one reason to doubt a study's numbers, or a mistake in it, in words, with whom it concerns.

Texts hold names and messages that others wrote. They are plain text: who shows them escapes them for where they go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.frames.row_types import ConfigurationRow, Named

WRONG, DOUBT, NOTE = SEVERITIES = ("wrong", "doubt", "note")
MOST_NAMES = 3
Row = ConfigurationRow


@dataclass(frozen=True)
class Finding:
    """`wrong`: a comparison that must not be made; `doubt`: one that may mislead; `note`: to be known."""

    flaw: str  # of the published studies, "F13", or a word of our own, "drift"
    title: str  # a few words
    text: str  # what was seen, with its figures, and what follows from it
    severity: str  # one of SEVERITIES
    configurations: tuple[str, ...] = ()  # ids; none: the study as a whole

    @property
    def published(self) -> bool:
        """Whether the flaw is one of the published studies': F1 to F28 of docs/flaws.md."""
        return self.flaw[:1] == "F" and self.flaw[1:].isdigit()

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity {self.severity!r} is none of {', '.join(SEVERITIES)}")


def about(flaw: str, title: str, text: str, severity: str, rows: Iterable[Named]) -> Finding:
    """A finding about these configurations."""
    return Finding(flaw, title, text, severity, tuple(dict.fromkeys(str(row["configuration"]) for row in rows)))


def named(rows: Sequence[Named], among: Sequence[Named] = ()) -> str:
    """`resnet18, horovod, 2 workers, fp32, batch 32; ... and 5 more`; `all` where it is all of `among`."""
    if 1 < len(among) == len(rows):
        return "all"
    names = list(dict.fromkeys(f"{row['model']}, {row['series']}, batch {row['batch']}" for row in rows))
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return "; ".join(names[:MOST_NAMES]) + more


def count(number: int, what: str) -> str:
    """`1 configuration`, `3 configurations`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, each once."""
    return sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))
