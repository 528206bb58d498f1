"""The same tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from analysis import tables
from analysis.results import Results
from analysis.tables import ALIKE, ALIKE_SIGN, BEST, Cell, Table

MOST_COLUMNS, MOST_ROWS = 8, 60


def show(results: Results, console: Console) -> None:
    """Print every model's throughput, and its speed-up where the study declares a baseline."""
    if not results.models:
        console.print(f"{results.study.name}: no finished trial yet")
    legend: dict[str, None] = {}
    for model in results.models:
        made = [tables.throughput(results, model)]
        if results.study.baseline is not None:
            made.append(tables.speedup(results, model))
        for table in made:
            console.print(render(table))
            legend |= dict.fromkeys(table.legend)
        _say(dict.fromkeys(note for table in made for note in table.notes), console)
        console.print()
    _say(legend, console)


def _say(sentences: Iterable[str], console: Console) -> None:
    for sentence in sentences:
        console.print(Padding(Text(sentence.replace("**", ""), style="dim"), (0, 0, 0, 2)))


def render(table: Table) -> RichTable:
    """The fastest of each row is bold green, a status yellow, the best row starred."""
    result = RichTable(title=table.title, title_justify="left", title_style="bold")
    result.add_column(table.row_name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    header, body = tables.grid(table, MOST_COLUMNS)
    for column in header[1:]:
        result.add_column(column.replace(", ", "\n"), justify="right")
    for first, cells in body[:MOST_ROWS]:
        result.add_row(*first, *map(_text, cells))
    if len(body) > MOST_ROWS:
        result.caption = f"{len(body) - MOST_ROWS} more rows: see tables/"
    return result


def _text(cell: Cell) -> Text:
    if not cell.ok:
        return Text(cell.text, style="yellow")
    return Text(cell.text + (f" {ALIKE_SIGN}" if cell.mark == ALIKE else ""), style="bold green" * (cell.mark == BEST))
