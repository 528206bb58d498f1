"""What a table is, and its Markdown: text in cells, marks, notes under it. HTML and the terminal render the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# The fastest of its row; tied with it (95 %); the slowest of its row, slower than the fastest (p < 0.05); a status in
# place of a value; not comparable.
BEST, ALIKE, WORST, FAILED, ASIDE = MARKS = ("best", "alike", "worst", "failed", "aside")
ALIKE_SIGN, WORST_SIGN = "≈", "▼"
BEST_ROW_SIGN = "★"
MOST_COLUMNS = 16  # of a Markdown table


@dataclass(frozen=True)
class Cell:
    """What one configuration shows; `mark` is one of MARKS or empty, `sign` refers to a note (comparability.py).

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
        lines = markdown_rows(table.header, [[Cell(text) for text in row] for row in table.rows])
        notes = table.notes
    else:
        header, body = grid(table, MOST_COLUMNS)
        lines = markdown_rows(header, [[*map(Cell, names), *cells] for names, cells in body], names=0)
        notes = (*table.notes, *table.legend)
    return "\n".join([f"# {harmless(table.title)}", "", *lines, "", *(f"- {harmless(note)}" for note in notes), ""])


def markdown_rows(header: Sequence[str], rows: Iterable[Sequence[Cell]], names: int = 1) -> list[str]:
    """The lines of a table whose first `names` columns are set left."""
    rules = [":---"] * names + ["---:"] * (len(header) - names)
    body = [[*map(_marked, row)] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in ([*map(harmless, header)], rules, *body)]


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
    text = " ".join(text.split())
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("](", "]&#40;")):
        text = text.replace(sign, written)
    return text


def _marked(cell: Cell) -> str:
    if not cell.text:
        return ""
    text, signed = harmless(cell.text), harmless(cell.signed)
    marked = {
        BEST: f"**{signed}**", ALIKE: f"{signed} {ALIKE_SIGN}", WORST: f"{signed} {WORST_SIGN}",
        FAILED: f"*{text}* {cell.sign}".rstrip(),
    }  # fmt: skip
    return marked.get(cell.mark, signed)
