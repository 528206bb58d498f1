"""Tables in the published layout: one a model, a row for each batch size, a column for workers x allreduce precision.

A `Table` is text in cells, with a mark on the fastest; markdown() and terminal.py render it, long() is its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis import notes
from analysis.baseline import known
from analysis.configurations import values
from analysis.results import Results
from scaling_study.intervals import ratio

BEST, ALIKE = "best", "alike"  # the fastest of its row; not distinguishable from it at 95 %
ALIKE_SIGN = "≈"
BEST_ROW_SIGN = "★"
MOST_COLUMNS = 16  # of a Markdown table


@dataclass(frozen=True)
class Cell:
    """What one configuration shows; `mark` is BEST, ALIKE or empty."""

    text: str
    mark: str = ""
    ok: bool = True


@dataclass(frozen=True)
class Table:
    """One model's table. `cells` maps (batch size, series) to what to show; a pair not in it was not planned."""

    title: str
    row_name: str
    rows: tuple[int, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[int, str], Cell]
    best_row: int | None
    notes: tuple[str, ...]  # of this table
    legend: tuple[str, ...]  # the same for every table of its kind


def throughput(results: Results, model: str) -> Table:
    """`712 ± 8` samples/s; the half-width is that of the 95 % interval between repeats."""
    title, legend = f"Throughput of {model} in samples/s", notes.legend(results)
    return _table(results, model, title, _throughput_text, notes.of(results, model), legend)


def speedup(results: Results, model: str) -> Table:
    """`1.62 [1.58, 1.66], 81 %`: speed-up with its 95 % interval, and efficiency (speed-up / workers)."""
    title = f"Speed-up of {model} over {results.study.baseline_text}, and efficiency"
    legend = notes.legend_of_speedup(results)
    return _table(results, model, title, _speedup_text, notes.of_speedup(results, model), legend)


def long(results: Results, model: str) -> pd.DataFrame:
    """The numbers of throughput(): one row a batch size; a mean (or status), and a half-width, for each series."""
    ours = _of_model(results, model)
    text = [
        round(row["samples_per_second"], 3) if row["status"] == "ok" else row["status"]
        for row in ours.to_dict("records")
    ]
    half = ((ours.interval_high - ours.interval_low) / 2).round(3)
    frame = ours.assign(mean=pd.Series(text, index=ours.index, dtype=object), half=half.astype(object))
    wide = {
        (order, series, what): group.drop_duplicates("batch").set_index("batch")[what]
        for (order, series), group in frame.groupby(["series_order", "series"])
        for what in ("mean", "half")
    }
    names = [series if what == "mean" else f"{series} ±" for _, series, what in wide]
    result = pd.DataFrame(list(wide.values()), index=names, dtype=object).T.sort_index()
    return result.rename_axis(results.study.batch_key).reset_index()


def markdown(table: Table) -> str:
    """A Markdown page: title, table, notes. The fastest of each row is bold, the row with the fastest starred."""
    header, body = grid(table, MOST_COLUMNS)
    lines = [f"# {table.title}", "", "| " + " | ".join(header) + " |", "|" + " ---: |" * len(header)]
    lines += ["| " + " | ".join([*first, *map(_marked, cells)]) + " |" for first, cells in body]
    return "\n".join([*lines, "", *(f"- {note}" for note in (*table.notes, *table.legend)), ""])


def grid(table: Table, most_columns: int) -> tuple[list[str], list[tuple[list[str], list[Cell]]]]:
    """(header, rows), a row as its first texts and its cells. With more columns than `most_columns`, which nobody
    could read, each column becomes rows instead: batch size, series, value."""
    star = {row: f"{BEST_ROW_SIGN} {row}" if row == table.best_row else str(row) for row in table.rows}
    if len(table.columns) <= most_columns:
        body = [([star[r]], [table.cells.get((r, c), Cell("")) for c in table.columns]) for r in table.rows]
        return [table.row_name, *table.columns], body
    tall = [([star[r], c], [table.cells[r, c]]) for r in table.rows for c in table.columns if (r, c) in table.cells]
    return [table.row_name, "configuration", "value"], tall


def _marked(cell: Cell) -> str:
    text = cell.text if cell.ok else f"*{cell.text}*" if cell.text else ""
    return f"**{text}**" if cell.mark == BEST else f"{text} {ALIKE_SIGN}" if cell.mark == ALIKE else text


def _of_model(results: Results, model: str) -> pd.DataFrame:
    ours = results.configurations[results.configurations.model == model]
    return ours.sort_values(["batch", "series_order"], kind="stable")


def _table(results: Results, model: str, title: str, text: Any, said: list[str], legend: list[str]) -> Table:
    ours = _of_model(results, model).to_dict("records")
    cells: dict[tuple[int, str], Cell] = {}
    for batch in dict.fromkeys(row["batch"] for row in ours):
        row_marks = marks([row for row in ours if row["batch"] == batch])
        for row in ours:
            place = (int(row["batch"]), str(row["series"]))
            if row["batch"] == batch:
                cell = Cell(text(row), row_marks.get(row["configuration"], ""), row["status"] == "ok")
                # Two configurations that differ only in how they were measured share a cell and are both shown.
                cells[place] = Cell(f"{cells[place].text}; {cell.text}", cell.mark) if place in cells else cell
    fastest = max((r for r in ours if r["n"]), key=lambda r: r["samples_per_second"], default=None)
    order = sorted({(row["series_order"], str(row["series"])) for row in ours})
    synthetic = ", SYNTHETIC DATA" if results.synthetic else ""
    return Table(
        title=f"{title} ({results.study.name}{synthetic})",
        row_name="global batch" if results.study.batch_key == "global_batch" else "batch per worker",
        rows=tuple(sorted({batch for batch, _ in cells})),
        columns=tuple(series for _, series in order),
        cells=cells,
        best_row=None if fastest is None else int(fastest["batch"]),
        notes=tuple(said),
        legend=tuple(legend),
    )


def marks(row: list[dict[Any, Any]]) -> dict[str, str]:
    """Configuration -> BEST or ALIKE, for configurations of one row: which is fastest, and which may be as fast."""
    measured = [c for c in row if c["n"] and not c["oversubscribed"]]
    if len(measured) < 2:
        return {}
    best = max(measured, key=lambda c: c["samples_per_second"])
    result = {best["configuration"]: BEST}
    for other in measured:
        gain = ratio(values(best), values(other))
        if other is not best and gain.low is not None and gain.low <= 1:
            result[other["configuration"]] = ALIKE
    return result


def number(value: float, half: float | None = None) -> str:
    """`4,657`, `71.2`, `1.62`, with `± half` to as many places."""
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    while half and half < 0.5 / 10**places and places < 4:  # never "± 0" of something
        places += 1
    return f"{value:,.{places}f}" + ("" if half is None else f" ± {half:,.{places}f}")


def _throughput_text(row: Mapping[Any, Any]) -> str:
    if row["status"] != "ok":
        return str(row["status"])
    half = (row["interval_high"] - row["interval_low"]) / 2 if known(row["interval_low"]) else None
    lone = f" (n = {row['n']})" if half is None else ""
    failed = f" ({row['failures']})" if row["failures"] else ""
    return number(row["samples_per_second"], half) + lone + failed


def _speedup_text(row: Mapping[Any, Any]) -> str:
    if row["status"] != "ok":
        return str(row["status"])
    if not known(row["speedup"]):
        return "oversubscribed" if row["oversubscribed"] else "no baseline"
    if row["baseline"] == row["configuration"]:
        return "1 (baseline)"
    low, high = row["speedup_low"], row["speedup_high"]
    interval = f" [{low:.2f}, {high:.2f}]" if known(low) else f" (n = {row['n']})"
    return f"{row['speedup']:.2f}{interval}, {100 * row['efficiency']:.0f} %"
