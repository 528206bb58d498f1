"""Tables and warnings in the terminal. A table too wide for it becomes one long table, batch size by batch size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from analysis.execution import Salvage
from analysis.findings import DOUBT, NOTE, WORDS, WRONG
from analysis.frames import configurations
from analysis.frames.results import Results
from analysis.frames.rows import grouped
from analysis.report import headline
from analysis.show.layout import ALIKE, ALIKE_SIGN, BEST, FAILED, Cell, Listing, Table
from analysis.views import catalog, noise, prediction
from analysis.views.view import ModelTable, StudyTable

MOST_COLUMNS, MOST_ROWS = 8, 120
COLUMN = 14  # characters, with its borders, below which a cell breaks over too many lines
MOST_WARNINGS = 12
STYLES = {WRONG: "bold red", DOUBT: "yellow", NOTE: "dim"}
SHOWN = ("samples/s", "efficiency")  # of a prediction
WITHOUT_BRACKETS = "Intervals are in tables/prediction.md and .csv: 95 %"  # a terminal has no room for them


def show(results: Results, console: Console) -> None:
    """Print every model's throughput, its speed-up where the study declares a baseline, and all warnings."""
    if results.nothing_yet:
        console.print(Text(f"{results.study.name}: {results.nothing_yet}"))
        _say(configurations.of_gates(results.gates), console)
    kinds = [kind for view in catalog.VIEWS for kind in view.tables]
    legend: dict[str, None] = {}
    for model in results.models:
        every = [kind.listing(results, model) for kind in kinds if isinstance(kind, ModelTable)]
        tables = [table for table in every if isinstance(table, Table)]
        fits = len(tables[0].columns) <= min(MOST_COLUMNS, (console.width - COLUMN) // COLUMN)
        for drawn in map(render, tables) if fits else [render_long(tables)]:
            console.print(drawn)
        for table in tables:
            legend |= dict.fromkeys(table.legend)
        _say(dict.fromkeys(note for table in tables for note in table.notes), console)
        console.print()
    _say(legend, console)
    briefs = [kind.brief(results) for kind in kinds if isinstance(kind, StudyTable) and kind.brief]
    for listing in filter(None, briefs):
        show_listing(listing, console)
    if (results.configurations.n > 0).any():
        _warn(results, console)
        console.print()
        answer(results, console)


def _say(sentences: Iterable[str], console: Console) -> None:
    for sentence in sentences:
        console.print(Padding(Text(sentence.replace("**", ""), style="dim"), (0, 0, 0, 2)))


def _warn(results: Results, console: Console) -> None:
    """Every finding in one or two sentences, the worst first, and what the machine was like meanwhile."""
    warnings = catalog.all_findings(results)
    console.print(Text("\nWarnings" if warnings else "\nNo warnings", style="bold"))
    for warning in warnings[:MOST_WARNINGS]:
        flaw = f" ({warning.flaw})" if warning.published else ""
        words = Text.assemble(
            (WORDS[warning.severity], STYLES[warning.severity]), ": ", (warning.title, "bold"), flaw, ". ", warning.text
        )
        console.print(Padding(words, (0, 0, 0, 2)))
    more = len(warnings) - MOST_WARNINGS
    _say([*([f"and {more} more on the page"] if more > 0 else []), *noise.machine(results)], console)


def answer(results: Results, console: Console) -> None:
    """Print the sentences that the report begins with; nothing where no trial has succeeded."""
    if (results.configurations.n > 0).any():
        first, *others = Salvage().or_else(
            "the answer",
            lambda: [*headline.sentences(headline.facts(results)), f"{headline.margin(results)}."],
            lambda why: [f"The answer could not be made: {why}"],
        )
        console.print(Text(first.replace("**", ""), style="bold"))
        for sentence in others:
            console.print(Text(sentence))


def render(table: Table) -> RichTable:
    """A row for each batch size. The fastest of each row is bold green, a status yellow, the best row starred."""
    result = _titled(table.title)
    result.add_column(table.row_name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    shown = table.grid(MOST_COLUMNS)
    for column in shown.header[1:]:
        result.add_column(escape(column.replace(", ", "\n")), justify="right")
    for row in shown.rows[:MOST_ROWS]:
        result.add_row(*map(_text, row))
    return result


def _titled(title: str, **looks: Any) -> RichTable:
    return RichTable(title=escape(title), title_justify="left", title_style="bold", **looks)


def show_listing(listing: Listing, console: Console, names: Sequence[str] = (), left: int = 1) -> None:
    """Print a table and its notes: the columns with these `names` (default: all), the first `left` ones set left."""
    table, shown = _titled(listing.title, box=None, padding=(0, 2, 0, 0)), names or listing.header
    for place, name in enumerate(name for name in shown if name in listing.header):
        table.add_column(escape(name), justify="left" if place < left else "right")
    for row in listing.rows:
        cells = dict(zip(listing.header, row, strict=True))
        table.add_row(*(escape(cells[name]) for name in shown if name in cells))
    console.print(table)
    _say(listing.notes, console)


def show_prediction(listing: Listing, console: Console) -> None:
    """Print what prediction.forecast_listing made: algorithms side by side, without brackets, and its notes."""
    rows = [dict(zip(listing.header, row, strict=True)) for row in listing.rows]
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    table = _titled(listing.title)
    table.add_column("configuration")
    for name in ("workers", *(f"{name}: samples/s, efficiency" for name in algorithms)):
        table.add_column(name, justify="right")
    for way, ours in grouped(rows, lambda row: f"{row['configuration']}, {row['allreduce']}").items():
        for index, (workers, each) in enumerate(grouped(ours, lambda row: row["workers"]).items()):
            cells = {row["algorithm"]: ", ".join(row[name].partition(" [")[0] for name in SHOWN) for row in each}
            table.add_row("" if index else escape(way), workers, *(cells.get(name, "") for name in algorithms))
        table.add_section()
    console.print(table)
    _say((note.replace(prediction.BRACKETS, WITHOUT_BRACKETS) for note in listing.notes), console)


def render_long(tables: Sequence[Table]) -> RichTable:
    """A row for each configuration, in sections by batch size, with the value of each of these tables."""
    first = tables[0]
    result = _titled("\n".join(table.title for table in tables))
    result.add_column(first.row_name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    result.add_column("configuration")
    for table in tables:
        result.add_column(table.value_name, justify="right")
    for row, group in groupby(first.places[:MOST_ROWS], key=lambda place: place[0]):
        for index, place in enumerate(group):
            name = first.star(row) if index == 0 else ""
            result.add_row(name, escape(place[1]), *(_text(table.cells[place]) for table in tables))
        result.add_section()
    if len(first.places) > MOST_ROWS:
        result.caption = f"{len(first.places) - MOST_ROWS} more rows: see tables/"
    return result


def _text(cell: Cell) -> Text:
    if cell.mark == FAILED:
        return Text(cell.signed, style="yellow")
    if cell.sign:
        return Text(cell.signed, style="bright_black")
    return Text(cell.text + (f" {ALIKE_SIGN}" if cell.mark == ALIKE else ""), style="bold green" * (cell.mark == BEST))
