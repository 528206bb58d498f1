"""Tables in the published layout: one a model, a row for each batch size, a column for workers x allreduce precision.

A `Table` is text in cells, with a mark on the fastest; layout.markdown() and terminal.py render it, long() is its
numbers.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames import comparability, outcomes
from analysis.frames.baseline import known
from analysis.frames.cache import once
from analysis.frames.results import Results, unit
from analysis.frames.row_types import ConfigurationRow
from analysis.statistics import equal_work, ranking
from analysis.tables import notes
from analysis.tables.layout import ALIKE, BEST, FAILED, Cell, Table
from analysis.text.number_formats import number

SHOWN = {ranking.BEST: BEST, ranking.ALIKE: ALIKE}


@once
def throughput(results: Results, model: str) -> Table:
    """`712 ± 8` samples/s; the half-width is that of the 95 % interval between repeats. Beside it tokens/s, of text."""
    samples = unit(_of_model(results, model))
    title, legend = f"Throughput of {model} in {samples}/s", notes.legend(results)
    return _table(results, model, title, f"{samples}/s", throughput_text, notes.of(results, model), legend)


@once
def speedup(results: Results, model: str) -> Table:
    """`1.62 [1.58, 1.66], 81 %`: speed-up with its 95 % interval, and efficiency."""
    title = f"Speed-up of {model} over {results.study.baseline_text}, and efficiency"
    name, lines, legend = "speed-up, efficiency", notes.of_speedup(results, model), notes.legend_of_speedup(results)
    return _table(results, model, title, name, _speedup_text, lines, legend)


@once
def long(results: Results, model: str) -> pd.DataFrame:
    """The numbers of throughput(): one row a batch size; a mean (or status), a half-width, and for text the tokens/s,
    for each series."""
    ours = _of_model(results, model)
    text = [
        round(row["samples_per_second"], 3) if row["status"] == "ok" else outcomes.word(row)
        for row in _rows(results, model)
    ]
    half = ((ours.interval_high - ours.interval_low) / 2).round(3)
    frame = ours.assign(mean=pd.Series(text, index=ours.index, dtype=object), half=half.astype(object))
    frame["tokens"] = ours.tokens_per_second.round(1).astype(object)
    names = {"mean": "", "half": " ±"} | ({"tokens": " tokens/s"} if ours.tokens_per_second.notna().any() else {})
    wide = {
        (order, series, what): group.drop_duplicates("batch").set_index("batch")[what]
        for (order, series), group in frame[["series_order", "series", "batch", *names]].groupby(
            ["series_order", "series"]
        )
        for what in names
    }
    signs = {row["series"]: comparability.sign(row) for row in results.rows_of(model)}
    titles = [f"{series} {signs[str(series)]}".rstrip() + names[what] for _, series, what in wide]
    result = pd.DataFrame(list(wide.values()), index=titles, dtype=object).T.sort_index()
    return result.rename_axis(results.study.batch_key).reset_index()


def _of_model(results: Results, model: str) -> pd.DataFrame:
    ours = results.frame_of(model)
    return ours.sort_values(["batch", "series_order"], kind="stable")


def _rows(results: Results, model: str) -> list[ConfigurationRow]:
    """In the same order."""
    return sorted(results.rows_of(model), key=lambda row: (row["batch"], row["series_order"]))


def _table(
    results: Results, model: str, title: str, name: str, text: Any, lines: list[str], legend: list[str]
) -> Table:
    ours = _rows(results, model)
    cells: dict[tuple[int, str], Cell] = {}
    verdicts = ranking.verdicts_of_rows(results)
    for batch in dict.fromkeys(row["batch"] for row in ours):
        for row in ours:
            place = (int(row["batch"]), str(row["series"]))
            if row["batch"] == batch:
                mark = SHOWN.get(verdicts.get(row["configuration"], ""), "") if row["status"] == "ok" else FAILED
                cell = Cell(text(row), mark, comparability.sign(row))
                # Two configurations that differ only in how they were measured share a cell and are both shown.
                both = cells.get(place)
                cells[place] = Cell(f"{both.text}; {cell.text}", mark.replace(FAILED, ""), cell.sign) if both else cell
    most = next(iter(equal_work.alike(r for r in ours if competes(r))), [])
    fastest = max(most, key=lambda r: r["samples_per_second"], default=None)
    order = sorted({(row["series_order"], str(row["series"])) for row in ours})
    return Table(
        title=f"{title} ({results.heading})",
        row_name="global batch" if results.study.batch_key == "global_batch" else "batch per worker",
        value_name=name,
        rows=tuple(sorted({batch for batch, _ in cells})),
        columns=tuple(series for _, series in order),
        cells=cells,
        best_row=None if fastest is None else int(fastest["batch"]),
        notes=tuple(lines),
        legend=tuple(legend),
    )


def competes(row: ConfigurationRow) -> bool:
    """Whether its speed may be set beside others'."""
    return bool(row["n"] and not row["oversubscribed"] and not row["not_comparable"])


def throughput_text(row: ConfigurationRow) -> str:
    """`712 ± 8`, or the status."""
    if row["status"] != "ok":
        return outcomes.word(row)
    half = (row["interval_high"] - row["interval_low"]) / 2 if known(row["interval_low"]) else None
    lone = f" (n = {row['n']})" if half is None else ""
    failed = f" ({row['failures']})" if row["failures"] else ""
    tokens = f"; {number(row['tokens_per_second'])} tokens/s" if known(row["tokens_per_second"]) else ""
    return number(row["samples_per_second"], half) + lone + tokens + failed


def _speedup_text(row: ConfigurationRow) -> str:
    if row["status"] != "ok":
        return outcomes.word(row)
    if row["not_comparable"]:
        return "not comparable"
    if not known(row["speedup"]):
        return "oversubscribed" if row["oversubscribed"] else "no baseline"
    if row["baseline"] == row["configuration"]:
        return "1 (baseline)"
    low, high = row["speedup_low"], row["speedup_high"]
    interval = f" [{low:.2f}, {high:.2f}]" if known(low) else f" (n = {row['n']})"
    return f"{row['speedup']:.2f}{interval}, {100 * row['efficiency']:.0f} %"
