"""Tables and their Markdown: text in cells, marks, notes under it. HTML and the terminal render the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# The fastest of its row; its highest means, too close to call; the slowest of its row, slower (p < 0.05); a
# status in place of a value; not comparable.
BEST, ALIKE, WORST, FAILED, ASIDE = ("best", "alike", "worst", "failed", "aside")
ALIKE_SIGN, WORST_SIGN = "≈", "▼"
BEST_ROW_SIGN = "★"
MOST_COLUMNS = 16  # of a Markdown table


@dataclass(frozen=True)
class Cell:
    """One configuration's cell; `mark` is one of MARKS or empty, `sign` refers to a note (configurations.py).

    `share`: of the largest value of its table, for a bar behind the number; None: no bar.
    """

    text: str
    mark: str = ""
    sign: str = ""
    share: float | None = None

    @property
    def signed(self) -> str:
        return f"{self.text} {self.sign}" if self.sign else self.text


@dataclass(frozen=True)
class Grid:
    """Any table as it is shown. The first `names` cells of a row say what the row is."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    names: int = 1
    file: str = ""  # of its numbers: the name of a CSV beside the page
    csv: str = ""  # and what is in it


@dataclass(frozen=True)
class Table:
    """One model's table. `cells` maps (batch size, series) to what to show; a pair not in it was not planned."""

    title: str
    row_name: str
    value_name: str  # of what the cells hold
    rows: tuple[int, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[int, str], Cell]
    best_row: int | None
    notes: tuple[str, ...]  # of this table
    legend: tuple[str, ...]  # the same for every table of its kind
    nothing: str = ""  # why it says nothing that a page need show; it is among the files all the same

    def star(self, row: int) -> str:
        """The name of a row, starred where the fastest of several stands."""
        return f"{BEST_ROW_SIGN} {row}" if row == self.best_row and len(self.rows) > 1 else str(row)

    @property
    def places(self) -> list[tuple[int, str]]:
        """(row, column) of each cell, row by row."""
        return [(row, column) for row in self.rows for column in self.columns if (row, column) in self.cells]

    def grid(self, most_columns: int = MOST_COLUMNS) -> Grid:
        """With more columns than `most_columns`, which nobody could read, each column becomes rows instead: batch
        size, series, value."""
        header: tuple[str, ...]
        rows: list[tuple[Cell, ...]]
        if len(self.columns) <= most_columns:
            header, names = (self.row_name, *self.columns), 1
            rows = [
                (Cell(self.star(row)), *(self.cells.get((row, column), Cell("")) for column in self.columns))
                for row in self.rows
            ]
        else:
            header, names = (self.row_name, "configuration", self.value_name), 2
            rows = [(Cell(self.star(row)), Cell(column), self.cells[row, column]) for row, column in self.places]
        return Grid(self.title, header, tuple(rows), (*self.notes, *self.legend), names)


@dataclass(frozen=True)
class Listing:
    """A table of several numbers for each configuration: the first column names it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    nothing: str = ""  # as of Table

    @classmethod
    def from_rows(cls, title: str, rows: Sequence[Mapping[str, str]], notes: Iterable[str]) -> Listing:
        """A table of rows that map each column's header to its text. All have the same headers."""
        return cls(title, tuple(rows[0]) if rows else (), tuple(tuple(row.values()) for row in rows), tuple(notes))

    def grid(self) -> Grid:
        """Without marks."""
        return Grid(self.title, self.header, tuple(tuple(map(Cell, row)) for row in self.rows), self.notes)


def markdown(table: Table | Listing) -> str:
    """GitHub's Markdown, with the title as a heading and the notes below."""
    shown = table.grid()
    lines = markdown_rows(shown.header, shown.rows, names=0 if isinstance(table, Table) else 1)
    notes = [f"- {harmless(note)}" for note in shown.notes]
    return "\n".join([f"# {harmless(shown.title)}", "", *lines, "", *notes, ""])


NUMBER = re.compile(r"~?[±+−-]?[\d.,]+(\s.{0,40})?")


def is_right(text: str) -> bool:
    """True where a cell is set right: a number, possibly with unit, interval and sign; no sentence."""
    return NUMBER.fullmatch(text) is not None


def to_right(rows: Sequence[Sequence[Cell]]) -> list[bool]:
    """For each column, True where most of its cells are numbers, so that its name stands above them."""
    columns = [[cell.text for cell in column if cell.text] for column in zip(*rows, strict=True)]
    return [2 * sum(map(is_right, texts)) > len(texts) for texts in columns]


def markdown_rows(header: Sequence[str], rows: Sequence[Sequence[Cell]], names: int = 1) -> list[str]:
    """The lines of a table; its first `names` columns, and those of words, are set left."""
    right = to_right(rows) or [False] * len(header)
    rules = ["---:" if number and place >= names else ":---" for place, number in enumerate(right)]
    body = [[*map(_marked, row)] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in ([*map(harmless, header)], rules, *body)]


def harmless(text: str) -> str:
    """Names and messages that others wrote make no HTML, no link or image, and no column of their own."""
    text = " ".join(text.split())
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("](", "]&#40;")):
        text = text.replace(sign, written)
    return text


def _marked(cell: Cell) -> str:
    if not cell.text:
        return ""
    text, signed = harmless(cell.text), harmless(cell.signed)
    marked = {
        BEST: f"**{signed}**",
        ALIKE: f"{signed} {ALIKE_SIGN}",
        WORST: f"{signed} {WORST_SIGN}",
        FAILED: f"*{text}* {cell.sign}".rstrip(),
    }
    return marked.get(cell.mark, signed)
