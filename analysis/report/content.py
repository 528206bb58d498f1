"""What a report is made of, before it is HTML or Markdown: sections, and in them a few kinds of parts.

A text is one paragraph. Of its characters only `**bold**` and `` `code` `` mean anything; all else is shown as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.tables.layout import Grid

GOOD, NOTE, DOUBT, WRONG = TONES = ("good", "note", "doubt", "wrong")


@dataclass(frozen=True)
class Text:
    """A paragraph; with a tone it stands out. `label` is said before it, as `doubt` or `F13`."""

    text: str
    tone: str = ""
    label: str = ""


@dataclass(frozen=True)
class Bullets:
    """Sentences under each other."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Card:
    """One answer: `fastest`, its value with unit, the interval, whose it is, and what else may be as good."""

    label: str
    value: str  # empty: not known, and `note` says why
    interval: str = ""
    name: str = ""
    alike: tuple[str, ...] = ()
    note: str = ""
    untested: int = 0  # others with too few repeats for a test
    tied: int = 0  # others that are tied with it, of which `alike` names the first


@dataclass(frozen=True)
class Cards:
    """The answers of one model."""

    title: str
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Listing:
    """A table too long for a page: columns of values, of which the page shows the few rows that are in sight."""

    slug: str
    title: str
    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]  # one tuple a column, all as long; None: unknown
    file: str  # beside the page, with all of it

    @property
    def length(self) -> int:
        return len(self.values[0]) if self.values else 0


@dataclass(frozen=True)
class Picture:
    """A figure: the name of its files in figures/, and what it says to who cannot see it."""

    name: str
    title: str
    words: str


@dataclass(frozen=True)
class Code:
    """Text of a file, as it is."""

    text: str


@dataclass(frozen=True)
class Files:
    """Links to files beside the page, named by where they are from it."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class Fold:
    """Parts that are shown when asked for."""

    summary: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Heading:
    """Begins a part of a section."""

    text: str


Part = Text | Bullets | Cards | Grid | Listing | Picture | Code | Files | Fold | Heading


@dataclass(frozen=True)
class Section:
    """`slug` is its anchor. `lead` is what who reads no further should know."""

    slug: str
    title: str
    lead: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Report:
    """All of it. `facts`: a few words each, of where the numbers come from."""

    title: str
    facts: tuple[str, ...]
    sections: tuple[Section, ...]
    lost: tuple[str, ...] = ()  # a sentence for each part that could not be made


def every(parts: Sequence[Part]) -> Iterator[Part]:
    """The parts, and what is folded into them."""
    for part in parts:
        yield part
        if isinstance(part, Fold):
            yield from every(part.parts)


def lost(what: str, why: str) -> Text:
    """Where a part would have stood that ought to have been there."""
    return Text(f"**{what}**: this part could not be made: {why}", WRONG, "lost")


def missing(what: str, why: str) -> Text:
    """`Not measured: ...`: a gap, said where something would have stood."""
    return Text(f"{what}: {why}", NOTE)
