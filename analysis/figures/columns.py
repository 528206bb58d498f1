"""Which lines share a panel of the speed-up figure: a framework's, by allreduce precision and batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.figures import style
from analysis.figures.series_styles import DASHES, Look
from analysis.frames import outcomes, series
from analysis.frames.rows import as_rows

SHOWN = (
    *("configuration", "baseline", "framework", "allreduce", "workers", "batch", "status", "reason", "oversubscribed"),
    *("speedup", "speedup_low", "speedup_high", "efficiency", "efficiency_low", "efficiency_high"),
)  # of each configuration: slices of few columns are taken in no time


@dataclass(frozen=True)
class Line:
    """One line of a panel: its configurations, one-worker ones included, in the order of workers."""

    name: str
    look: Look
    rows: pd.DataFrame

    @property
    def missing(self) -> pd.DataFrame:
        """What has no speed-up, with why in `status`: not measured, oversubscribed, or no baseline that is ok."""
        if not self.rows.speedup.isna().any():
            return self.rows[:0]
        why = outcomes.words(self.rows).where(self.rows.status != "ok", "no baseline")
        why = why.mask((self.rows.status == "ok") & self.rows.oversubscribed, "oversubscribed")
        return self.rows.assign(status=why)[self.rows.speedup.isna()]


@dataclass(frozen=True)
class Column:
    """A panel of speed-ups and one of efficiencies under it: a framework, with the precisions that share them."""

    title: str
    rows: pd.DataFrame
    precisions: tuple[str, ...]

    def lines(self, batches: list[int]) -> Iterator[Line]:
        """One for each precision and batch size; one worker reduces nothing and belongs to every precision."""
        several = len(self.precisions) > 1
        shades = dict(zip(batches, style.shades(len(batches)), strict=True))
        for index, (batch, shade) in enumerate(shades.items()):
            for precision in self.precisions:
                fits = (self.rows.allreduce == precision) | (self.rows.workers == 1)
                rows = self.rows[fits & (self.rows.batch == batch)].sort_values("workers")
                dashes = DASHES.get(precision, "-") if several else "-"
                look = Look(shade, style.MARKERS[index % len(style.MARKERS)], dashes)
                if len(rows):
                    yield Line(f"batch {batch}" + (f", {precision}" if several else ""), look, rows)


def arrange(data: pd.DataFrame, names: Sequence[str], together: bool) -> list[Column]:
    """A column for each series without its worker count; with `together`, without its allreduce precision too.

    `names`: the keys that tell series apart.
    """
    others = [name for name in names if name not in ("workers", "allreduce")]
    columns: dict[str, Column] = {}
    apart = [*others] if together else [*others, "allreduce"]
    for row in as_rows(data[data.workers > 1].sort_values("series_order").drop_duplicates(apart)):
        alike = pd.Series(True, index=data.index)
        for name in others:
            alike &= data[name].isna() if pd.isna(row[name]) else (data[name] == row[name]).fillna(False)
        rows = data.loc[alike, list(SHOWN)]
        wire = [p for p in series.ALLREDUCE_ORDER if ((rows.allreduce == p) & (rows.workers > 1)).any()]
        precisions = tuple(wire) if together else (str(row["allreduce"]),)
        rows = rows[rows.allreduce.isin(precisions) | (rows.workers == 1)]
        words = [] if len(precisions) > 1 or precisions == ("none",) else [f"{precisions[0]} allreduce"]
        words += series.words(row, (name for name in others if name != "framework"))
        title = ", ".join([str(row["framework"]), *words])
        columns.setdefault(title, Column(title, rows, precisions))
    return list(columns.values())
