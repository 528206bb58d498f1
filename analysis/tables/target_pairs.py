"""The table of configurations that train the same in unlike ways, by seed: equal steps, and what each step costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.to_target import pairs

table = pairs.table
HEADER = ("configuration", "against", "seeds", "steps", "steps are", "seconds a step", "seconds", "seeds needed")


def listing(results: Results) -> Listing | None:
    """A row for each pair; None where no two configurations have one recipe."""
    rows = table(results)
    if rows.empty:
        return None
    several = rows.model.nunique() > 1
    both = {*rows.configuration, *rows.reference}
    cells = tuple(_cells(row, several) for row in rows.to_dict("records"))
    return Listing(
        f"The same training in unlike ways, by seed ({results.heading})", HEADER, cells, _lines(results, both)
    )


def _cells(row: Mapping[Any, Any], several: bool) -> tuple[str, ...]:
    model = f"{row['model']}, " if several else ""
    one_reached = f" + {row['one_reached']}" if row["one_reached"] else ""
    return (
        f"{model}{row['series']}, batch {row['global_batch']}", str(row["reference_series"]),
        f"{row['both_reached']}{one_reached} of {row['seeds']}", _ratio(row, "steps"), str(row["verdict"]),
        _ratio(row, "step_seconds"), _ratio(row, "seconds"),
        f"{row['seeds_needed']:.0f}" if known(row["seeds_needed"]) else "",
    )  # fmt: skip


def _ratio(row: Mapping[Any, Any], unit: str) -> str:
    mean, low, high = (row[f"{unit}_ratio{bound}"] for bound in ("", "_low", "_high"))
    if not known(mean):
        return ""
    bounds = (f"{bound:.2f}" if known(bound) else "?" for bound in (low, high))
    return f"{mean:.2f} [{', '.join(bounds)}]" if known(low) or known(high) else f"{mean:.2f}"


def _lines(results: Results, shown: set[str]) -> tuple[str, ...]:
    ours = results.configurations[results.configurations.configuration.isin(shown)]
    percent = 100 * (pairs.MARGIN - 1)
    return (
        *notes.how_it_differs(ours),
        "Ratios to the configuration they are against, which has the same model, global batch, precision and recipe: "
        "geometric means over the seeds of both, taken seed by seed [95 % interval, log-normal]. Steps and seconds are "
        "those to the target; seconds a step are of the whole trainings.",
        "Seeds: that both reached the target with, + those that one did (its ratio is known only to be larger or "
        "smaller, and counts so). With a seed that neither reached it, nothing is known.",
        "Steps are identical where every evaluation of every seed logged the same loss and metric, to the last digit. "
        f"They are equal where the whole interval lies within {percent:.0f} % of 1, up or down (equivalence), and "
        "differ where it leaves out 1, corrected for the number of pairs; else it is not resolved. Where they are "
        "equal, the seconds differ by the framework's time. Seeds needed: for an interval as narrow as that margin.",
        notes.source(results),
    )
