"""Tables of the analysis -> grids of the report: the same cells, with best and worst marked and bars behind numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from analysis.frames.baseline import known, value_of
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow
from analysis.statistics import ranking
from analysis.tables import layout
from analysis.tables.layout import ASIDE, FAILED, WORST, Cell, Grid

MOST_COLUMNS = 9  # of a table on a page; beyond, a row for each configuration
STATUSES = ("oom", "timeout", "failed", "unsupported", "cancelled")
Place = tuple[int, str]  # batch size, series


def of_table(table: layout.Table, results: Results, model: str, value: str, csv: pd.DataFrame, file: str) -> Grid:
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
    return replace(marked.grid(MOST_COLUMNS), file=file, csv=to_csv(csv))


def of_listing(listing: layout.Listing, file: str = "", csv: pd.DataFrame | None = None) -> Grid:
    """The CSV is that of the numbers behind it, or, where there is none, of its own cells."""
    shown = listing.grid()
    rows = tuple(
        tuple(replace(cell, mark=FAILED) if cell.text in STATUSES else cell for cell in row) for row in shown.rows
    )
    numbers = pd.DataFrame(list(listing.rows), columns=list(listing.header)) if csv is None else csv
    name = file or re.sub(r"\W+", "-", listing.title.split(" (")[0].lower()).strip("-") + ".csv"
    return replace(shown, rows=rows, file=name, csv=to_csv(numbers) if rows else "")


def of_rows(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], notes: tuple[str, ...] = (), file: str = ""
) -> Grid:
    return of_listing(layout.Listing(title, header, tuple(rows), notes), file)


def to_csv(frame: pd.DataFrame) -> str:
    return str(frame.to_csv(index=False))


def place_of(row: ConfigurationRow) -> Place:
    return int(row["batch"]), str(row["series"])


def _shares(rows: Sequence[ConfigurationRow], value: str) -> dict[Place, float]:
    """Of the largest."""
    numbers = {place_of(row): float(number) for row in rows if known(number := value_of(row, value))}
    most = max(numbers.values(), default=0.0)
    return {place: size / most for place, size in numbers.items()} if most > 0 else {}
