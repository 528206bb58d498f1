"""The table of pre-trained against random weights, and of frozen against trained parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.to_target import transfer
from scaling_study.targets import HEADS

table = transfer.table
HEADER = ("compared", "at", "seeds", "learning rates")


def listing(results: Results) -> Listing | None:
    """A row for each pair of arms; None where no two trainings differ in their weights, or in what is frozen, alone."""
    rows = table(results)
    if rows.empty:
        return None
    there = list(dict.fromkeys(rows.metric))
    metrics = [name for name in HEADS if name in there] or there
    several = rows.model.nunique() > 1
    pairs = rows.groupby(["ours_configuration", "theirs_configuration"], sort=False)
    cells = tuple(_cells(pair.set_index("metric"), metrics, several) for _, pair in pairs)
    header = (*HEADER, *(f"test {name}" for name in metrics))
    return Listing(f"What pre-training and freezing change ({results.heading})", header, cells, _lines(results, rows))


def _cells(pair: pd.DataFrame, metrics: list[str], several: bool) -> tuple[str, ...]:
    any_row: Mapping[Any, Any] = pair.iloc[0].to_dict()
    model = f"{any_row['model']}: " if several else ""
    rates = " against ".join(f"{any_row[f'{whose}_rate']:g}" if known(any_row[f"{whose}_rate"]) else "its own"
                             for whose in ("ours", "theirs"))  # fmt: skip
    return (
        f"{model}{any_row['ours']} less {any_row['theirs']}", str(any_row["fixed"]), str(any_row["seeds"]), rates,
        *(_difference(pair.loc[name].to_dict()) if name in pair.index else "" for name in metrics),
    )  # fmt: skip


def _difference(row: Mapping[Any, Any]) -> str:
    bounds = [row["difference_low"], row["difference_high"]]
    interval = f" [{', '.join(f'{bound:+.3f}' for bound in bounds)}]" if all(map(known, bounds)) else ""
    return f"{row['difference']:+.3f}{interval} ({row['theirs_mean']:.3f} → {row['ours_mean']:.3f})"


def _lines(results: Results, rows: pd.DataFrame) -> tuple[str, ...]:
    tried = int(max(rows.ours_rates_tried.max(), rows.theirs_rates_tried.max()))
    chosen = ", ".join(dict.fromkeys(rows.chosen_by))
    return (
        "Differences of the test's figures, seed by seed, mean over the seeds that both have [95 % interval, "
        "Student's; none below three seeds] (mean of the second → mean of the first).",
        f"Each at the learning rate, of at most {tried}, whose best evaluation on validation data is best by {chosen}, "
        "mean over the seeds that all its rates have. The test data chose nothing.",
        "At this budget of steps: random weights may catch up when trained for longer.",
        notes.source(results),
    )
