"""What a table is, before it is Markdown or stands in a terminal: text in cells, marks, and notes under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BEST, ALIKE = "best", "alike"  # the fastest of its row; not distinguishable from it at 95 %
ALIKE_SIGN = "≈"
BEST_ROW_SIGN = "★"
MOST_COLUMNS = 16  # of a Markdown table


@dataclass(frozen=True)
class Cell:
    """What one configuration shows; `mark` is BEST, ALIKE or empty, `sign` refers to a note (comparability.py)."""

    text: str
    mark: str = ""
    ok: bool = True
    sign: str = ""

    @property
    def signed(self) -> str:
        return f"{self.text} {self.sign}" if self.sign else self.text


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

    def star(self, row: int) -> str:
        """The name of a row, starred where the fastest stands."""
        return f"{BEST_ROW_SIGN} {row}" if row == self.best_row else str(row)


@dataclass(frozen=True)
class Listing:
    """A table of several numbers for each configuration: the first column names it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def markdown(table: Table | Listing) -> str:
    """GitHub's Markdown, with the title as a heading and the notes below."""
    if isinstance(table, Listing):
        header, body, first = list(table.header), [list(row) for row in table.rows], ":---"
        said = table.notes
    else:
        header, filled = grid(table, MOST_COLUMNS)
        body, first = [[*names, *map(_marked, cells)] for names, cells in filled], "---:"
        said = (*table.notes, *table.legend)
    rules = [first, *["---:"] * (len(header) - 1)]
    lines = [f"# {harmless(table.title)}", ""]
    lines += [f"| {' | '.join(map(harmless, line))} |" for line in (header, rules, *body)]
    return "\n".join([*lines, "", *(f"- {harmless(note)}" for note in said), ""])


def grid(table: Table, most_columns: int) -> tuple[list[str], list[tuple[list[str], list[Cell]]]]:
    """(header, rows), a row as its first texts and its cells. With more columns than `most_columns`, which nobody
    could read, each column becomes rows instead: batch size, series, value."""
    if len(table.columns) <= most_columns:
        body = [([table.star(r)], [table.cells.get((r, c), Cell("")) for c in table.columns]) for r in table.rows]
        return [table.row_name, *table.columns], body
    pairs = [(r, c) for r in table.rows for c in table.columns if (r, c) in table.cells]
    return [table.row_name, "configuration", "value"], [([table.star(r), c], [table.cells[r, c]]) for r, c in pairs]


def harmless(text: str) -> str:
    """Names and messages that others wrote make no HTML, no link or image, and no column of their own."""
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("](", "]&#40;")):
        text = text.replace(sign, written)
    return text


def _marked(cell: Cell) -> str:
    text = cell.signed if cell.ok else f"*{cell.text}* {cell.sign}".rstrip() if cell.text else ""
    return f"**{text}**" if cell.mark == BEST else f"{text} {ALIKE_SIGN}" if cell.mark == ALIKE else text
