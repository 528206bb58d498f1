"""Views: each is one question that a reader asks of a study, with all that answers it. catalog.py lists them.

Tables, figures and findings are declared, not made: whoever writes files, a page or a terminal goes through the list,
makes each by itself, and says of one that fails that it failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure

from analysis.findings import Evidence, Finding
from analysis.frames.results import Results
from analysis.show.layout import Listing, Table
from analysis.text import file_name

Section = Literal["trust", "tables", "figures", "why", "next", "published", ""]  # of the page; "": not on it
Figures = Mapping[str, Figure | None] | Figure | None


@dataclass(frozen=True)
class Gap:
    """Stands on the page where there is nothing to show: `No speed-ups`, and why not, which may depend on the study."""

    what: str
    why: str | Callable[[Results], str]

    def reason(self, results: Results) -> str:
        return self.why if isinstance(self.why, str) else self.why(results)


@dataclass(frozen=True)
class Shown:
    """A table that was made: the name of its files without an ending, how it is printed, and what it is in numbers."""

    file: str
    listing: Table | Listing | None
    table: pd.DataFrame | None

    @property
    def csv(self) -> str:
        return f"{self.file}.csv"


@dataclass(frozen=True)
class StudyTable:
    """A table of the whole study: `listing` is printed, tables/<name>.md; `table` has the numbers, tables/<name>.csv.

    `listing` returns None where the study has nothing to show; without a `listing` there are only numbers. `title`
    names it in messages. `files`: endings of what is written. `brief`: a shorter listing, for the terminal.
    """

    name: str
    listing: Callable[[Results], Listing | None] | None
    table: Callable[[Results], pd.DataFrame | None] | None = None
    title: str = ""
    section: Section = "tables"
    gap: Gap | None = None
    files: tuple[str, ...] = ("md", "csv")
    brief: Callable[[Results], Listing | None] | None = None

    def of(self, results: Results) -> Shown | None:
        listing = self.listing and self.listing(results)
        if self.listing and listing is None:
            return None
        return Shown(self.name, listing, self.table and self.table(results))

    def each(self, results: Results) -> Iterator[tuple[str, Callable[[], Shown | None]]]:
        """(what it is called in messages, a function that makes it), once."""
        yield self.title or self.name, partial(self.of, results)


@dataclass(frozen=True)
class ModelTable:
    """A table of each model: tables/<name>-<model>.md and .csv. `bars`: the column of configurations that a page shows
    as bars behind the numbers of a Table."""

    name: str
    listing: Callable[[Results, str], Table | Listing | None]
    table: Callable[[Results, str], pd.DataFrame]
    title: str
    gap: Gap | None = None
    files: tuple[str, ...] = ("md", "csv")
    bars: str = ""
    section: Section = "tables"

    def of(self, results: Results, model: str) -> Shown | None:
        if (listing := self.listing(results, model)) is None:
            return None
        return Shown(f"{self.name}-{file_name(model)}", listing, self.table(results, model))

    def each(self, results: Results) -> Iterator[tuple[str, Callable[[], Shown | None]]]:
        """(what it is called in messages, a function that makes it), for each model."""
        for model in results.models:
            yield f"{self.title} of {model}", partial(self.of, results, model)


@dataclass(frozen=True)
class Drawing:
    """A figure, figures/<name>.png and .svg, or `several`, whose names are <name>-<what they show>.

    `overview`: how names of figures begin that show several of these at once, and stand before them. `beside`: the
    table that it explains, below which it stands on the page. `rank`: in the section of figures, lower ranks come
    first, equal ones in the order of the views.
    """

    name: str
    draw: Callable[[Results], Figures]
    several: bool = False
    section: Section = "figures"
    beside: str = ""
    gap: Gap | None = None
    rank: int = 0
    overview: str = ""

    @classmethod
    def of_models(cls, name: str, draw: Callable[[Results, str], Figure | None], **about: Any) -> Drawing:
        """Figures <name>-<model>, one for each model; `draw` returns None where there is nothing to show of one."""

        def each(results: Results) -> Figures:
            return {f"{name}-{file_name(model)}": draw(results, model) for model in results.models}

        return cls(name, each, several=True, **about)

    @property
    def beginnings(self) -> tuple[str, ...]:
        """How the names of its files begin, in the order of the page."""
        return (self.overview, self.name) if self.overview else (self.name,)


Detector = Callable[[Evidence], Iterator[Finding]]  # looks for reasons to doubt the numbers


@dataclass(frozen=True)
class View:
    """A question, as a reader would ask it, and what answers it.

    Of findings equally severe, those of earlier views are said first, and those of one view in the order of its
    `detectors`.
    """

    question: str
    tables: tuple[StudyTable | ModelTable, ...] = ()
    figures: tuple[Drawing, ...] = ()
    detectors: tuple[Detector, ...] = ()
