"""Parts of a report before they are HTML or Markdown: texts, grids, long lists, pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import pandas as pd

from analysis.execution import NOTHING, Salvage
from analysis.findings import WRONG, Finding
from analysis.frames import columns
from analysis.frames import configurations as outcomes
from analysis.frames.columns import Column
from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow
from analysis.report.origins import Origins
from analysis.show import layout
from analysis.show.layout import ASIDE, FAILED, WORST, Cell, Grid
from analysis.statistics import ranking
from analysis.views import catalog
from analysis.views import view as views
from analysis.views.catalog import all_findings
from analysis.views.view import Drawing, Gap
from scaling_study.records.schema import STATUSES

# A report before it is HTML or Markdown: sections, and in them a few kinds of parts.
#
# A text is one paragraph. Of its characters only `**bold**` and `` `code` `` mean anything; all else is shown as it is.

GOOD = "good"  # a tone beside the severities of findings


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
    alike: tuple[str, ...] = ()  # the first of what is too close to it to call
    note: str = ""


@dataclass(frozen=True)
class Cards:
    """The answers of one model."""

    title: str
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class LongListing:
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
    """Parts that are shown when asked for. `full`: in Markdown only with `--full`; the HTML page always has them, and
    begins with those open that are `shown`. `key`: the name of what it holds, by which worth.py places it."""

    summary: str
    parts: tuple[Part, ...]
    full: bool = False
    shown: bool = False
    key: str = ""


CONCERNED = "concerned"  # key of a fold with all configurations that a finding concerns


Part = Text | Bullets | Cards | Grid | LongListing | Picture | Code | Files | Fold


@dataclass(frozen=True)
class Section:
    """`slug` is its anchor. `lead` is what who reads no further should know; with `about_parts` it says nothing where
    none of the parts is shown."""

    slug: str
    title: str
    lead: str
    parts: tuple[Part, ...]
    about_parts: bool = False


@dataclass(frozen=True)
class Report:
    """All of it. `facts`: a few words each, of where the numbers come from."""

    title: str
    facts: tuple[str, ...]
    sections: tuple[Section, ...]
    lost: tuple[str, ...] = ()  # a sentence for each part that could not be made


def tidied(part: Part, names: Callable[[str], str], said: tuple[str, ...]) -> Part:
    """A part with configurations named by what varies, without notes that begin with what the page has `said`."""
    match part:
        case Text():
            return replace(part, text=names(part.text))
        case Bullets():
            return Bullets(tuple(map(names, part.items)))
        case Cards():
            cards = (replace(card, name=names(card.name), alike=tuple(map(names, card.alike)), note=names(card.note))
                     for card in part.cards)  # fmt: skip
            return Cards(part.title, tuple(cards))
        case Grid():
            rows = tuple(tuple(replace(cell, text=names(cell.text)) for cell in row) for row in part.rows)
            notes = tuple(names(note) for note in part.notes if not note.startswith(said))
            return replace(part, header=tuple(map(names, part.header)), rows=rows, notes=notes)
        case Fold():
            return replace(part, parts=tuple(tidied(one, names, said) for one in part.parts))
    return part


MOST_NAMES = 60  # of a study; of more, names stay as they are in the tables


def short_names(results: Results) -> Callable[[str], str]:
    """A function that replaces names of configurations in a text by what of them varies in the study."""
    short = {name: text for name, text in results.named.items() if name != text}
    if not 0 < len(short) <= MOST_NAMES:
        return str
    longest_first = "|".join(re.escape(name) for name in sorted(short, key=len, reverse=True))
    return partial(re.compile(rf"(?<!\w)(?:{longest_first})(?!\w)").sub, lambda found: short[found[0]])


def lost(what: str, why: str) -> Text:
    """Where a part would have stood that ought to have been there."""
    return Text(f"**{what}**: this part could not be made: {why}", WRONG, "lost")


MOST_COLUMNS = 9  # of a table on a page; beyond, a row for each configuration
NOT_OK = frozenset(STATUSES) - {"ok"}
Place = tuple[int, str]  # batch size, series


def of_table(
    table: layout.Table, results: Results, model: str, value: str, csv: pd.DataFrame | None, file: str
) -> Grid:
    """`value`: the column of configurations that its bars show. `csv`: the numbers behind it."""
    ours = results.rows_of(model)
    shares, verdicts = _shares(ours, value), ranking.verdicts_of_rows(results)
    slowest = {place_of(row) for row in ours if verdicts.get(str(row["configuration"])) == ranking.WORST}

    def cell(place: Place) -> Cell:
        shown = table.cells[place]
        if not shown.text or shown.mark == FAILED:
            return shown
        mark = ASIDE if shown.sign else shown.mark or (WORST if place in slowest else "")
        return replace(shown, mark=mark, share=shares.get(place))

    marked = replace(table, cells={place: cell(place) for place in table.cells})
    return replace(marked.grid(MOST_COLUMNS), file=file, csv="" if csv is None else csv.to_csv(index=False))


def of_listing(listing: layout.Listing, file: str = "", csv: pd.DataFrame | None = None) -> Grid:
    """Without the columns that are empty in every row. The CSV is that of the numbers behind it, or, where there is
    none, of its own cells."""
    shown = listing.grid()
    kept = [at for at in range(len(shown.header)) if not shown.rows or any(row[at].text for row in shown.rows)]
    rows = tuple(
        tuple(replace(row[at], mark=FAILED) if row[at].text in NOT_OK else row[at] for at in kept) for row in shown.rows
    )
    numbers = pd.DataFrame(list(listing.rows), columns=list(listing.header)) if csv is None else csv
    name = file or re.sub(r"\W+", "-", listing.title.split(" (")[0].lower()).strip("-") + ".csv"
    header = tuple(shown.header[at] for at in kept)
    return replace(shown, header=header, rows=rows, file=name, csv=numbers.to_csv(index=False) if rows else "")


def of_rows(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], notes: tuple[str, ...] = (), file: str = ""
) -> Grid:
    return of_listing(layout.Listing(title, header, tuple(rows), notes), file)


def place_of(row: ConfigurationRow) -> Place:
    return int(row["batch"]), str(row["series"])


def _shares(rows: Sequence[ConfigurationRow], value: str) -> dict[Place, float]:
    """Each value as a share of the largest; empty where none is positive."""
    numbers = {place_of(row): float(number) for row in rows if known(number := row[value])}
    most = max(numbers.values(), default=0.0)
    return {place: size / most for place, size in numbers.items()} if most > 0 else {}


DIGITS = 5  # that are shown, and kept on the page; the CSV beside it has all


def configurations(results: Results) -> LongListing:
    rows = results.configurations.sort_values(["model", "batch", "series_order"], kind="stable")
    names = {"series": "configuration", "batch": "batch", "workers": "workers", "word": "status"}
    last = {"reason": "reason", "configuration": "id"}
    return _listing("configurations", "Configurations", rows, names, columns.of_configurations(), last)


def trials(results: Results) -> LongListing:
    """The trials of the study as it is now; gates and probes are in results.csv."""
    about = results.configurations[["configuration", "series", "batch"]]
    rows = results.runs.merge(about, on="configuration", how="inner")
    names = {"series": "configuration", "batch": "batch", "repeat": "repeat", "word": "status"}
    return _listing("trials", "Trials", rows, names, columns.TRIALS, {"reason": "reason", "trial": "id"})


def _listing(
    slug: str, title: str, rows: pd.DataFrame, first: dict[str, str], of: Iterable[Column], last: dict[str, str]
) -> LongListing:
    """`first`, `last`: columns and their headings before and behind those of `of` that are listed."""
    rows = rows.assign(word=outcomes.words(rows))
    listed = {column.name: column.listed for column in of if column.listed and slug in column.listed.lists}
    names = {"model": "model"} | first | {name: column.heading for name, column in listed.items()} | last
    kept = [name for name in names if name in ("model", "word", "samples_per_second") or rows[name].notna().any()]
    values = tuple(tuple(_values(rows[name], listed[name].factor if name in listed else 1.0)) for name in kept)
    file = "results.csv" if slug == "trials" else f"{slug}.csv"
    return LongListing(slug, title, tuple(names[name] for name in kept), values, file)


def _values(column: pd.Series[Any], factor: float) -> list[Any]:
    """Plain values, None where unknown; numbers to DIGITS significant ones."""
    if pd.api.types.is_float_dtype(column) or factor != 1.0:
        return [None if pd.isna(value) else float(f"{value * factor:.{DIGITS}g}") for value in column]
    if pd.api.types.is_integer_dtype(column):
        return [None if pd.isna(value) else int(value) for value in column]
    return ["" if pd.isna(value) else str(value) for value in column]


@dataclass(frozen=True)
class Material:
    """`folder`: the results folder or packed study as it was named on the command line. `pictures`: those drawn of this
    study, by the name of their files. `salvage`: what could not be made. `gaps`: what the study does not have."""

    results: Results
    folder: str
    pictures: Mapping[str, Picture]
    origins: Origins = field(default_factory=Origins)
    salvage: Salvage = field(default=NOTHING)
    gaps: list[str] = field(default_factory=list)

    def parts(self, what: str, make: Callable[[], Iterable[Part]]) -> list[Part]:
        """The parts that `make` returns; where it raises, one part that names the loss and its reason."""
        return self.salvage.or_else(what, lambda: list(make()), lambda why: [lost(what, why)])

    def text(self, what: str, make: Callable[[], str]) -> str:
        """The sentence that `make` returns; where it raises, one that names the loss and its reason."""
        return self.salvage.or_else(what, make, lambda why: f"**{what}**: this part could not be made: {why}.")

    @cached_property
    def findings(self) -> list[Finding]:
        """Findings about the numbers, the worst first."""
        return all_findings(self.results)

    def drawn(self, *beginnings: str) -> tuple[Picture, ...]:
        """The pictures whose names are one of these, or begin with one and a dash; in this order."""
        return tuple(
            picture
            for word in beginnings
            for name, picture in self.pictures.items()
            if name == word or name.startswith(f"{word}-")
        )


def drawings_of(section: views.Section) -> list[Drawing]:
    """The figures of a section, in its order."""
    every = [drawing for view in catalog.VIEWS for drawing in view.figures if drawing.section == section]
    return sorted(every, key=lambda drawing: drawing.rank)


def figures_of(material: Material, section: views.Section) -> Iterator[Part]:
    """The figures of a section; what the study does not have is noted among the gaps."""
    for drawing in drawings_of(section):
        pictures = material.drawn(*drawing.beginnings)
        yield from pictures
        if not pictures:
            note_gap(drawing.gap, material)


def note_gap(gap: Gap | None, material: Material) -> None:
    if gap is not None:
        material.gaps.append(f"{gap.what}: {gap.reason(material.results)}.")


def folded(summary: str, parts: Iterable[Part], key: str, full: bool = False) -> list[Part]:
    """One Fold of these parts; none where there are none."""
    every = tuple(parts)
    return [Fold(summary, every, full, key=key)] if every else []
