"""The table of epochs: the ratio as published, and beside it the same ratio at equal work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analysis.epochs import faults
from analysis.epochs.faults import UNSTEADY, Row, factor
from analysis.epochs.frame import SECONDS, table
from analysis.frames import comparability
from analysis.frames.baseline import known, value_of
from analysis.frames.results import Results
from analysis.frames.row_types import ComparedEpoch
from analysis.frames.rows import as_rows
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.text.number_formats import number

HEADER = (
    *("configuration", "workers", "global batch", "steps", "samples", "data s", "training s", "running s"),
    *("of which data", "epoch ratio, as published", "at equal work", "against steady state", "flags"),
)


def listing(results: Results) -> Listing | None:
    """A row for each configuration that ran epochs; None where none did."""
    epochs = table(results)
    if epochs.empty:
        return None
    ours = results.configurations[results.configurations.configuration.isin(epochs.configuration)]
    signs = {row["configuration"]: comparability.sign(row) for row in results.rows}
    several, rows = epochs.model.nunique() > 1, as_rows(epochs, ComparedEpoch)
    names = {
        row["configuration"]: (f"{row['model']}, " if several else "") + f"{row['series']}, batch {row['global_batch']}"
        for row in rows
    }
    cells = [(f"{names[row['configuration']]} {signs[row['configuration']]}".rstrip(), *_cells(row)) for row in rows]
    lines = [
        *comparability.sentences(ours), *_flagged(rows, names), *_without(rows, names), *comparability.checked(ours),
        *_legend(results), notes.source(results),
    ]  # fmt: skip
    return Listing(f"Epochs ({results.heading})", HEADER, tuple(cells), tuple(lines))


def _cells(row: Row) -> tuple[str, ...]:
    published = factor(row["epoch_ratio"])
    if known(row["epoch_ratio_low"]):
        published += f" [{row['epoch_ratio_low']:.2f}, {row['epoch_ratio_high']:.2f}]"
    if row["epoch_baseline"] == row["configuration"]:
        published = "1 (baseline)"
    share = row["data_seconds"] / row["running_seconds"] if row["running_seconds"] else None
    return (
        *(f"{value_of(row, key):,}" for key in ("workers", "global_batch", "steps", "samples")),
        *(number(value_of(row, key)) for key in SECONDS),
        "" if share is None else f"{100 * share:.1f} %",
        *(published, factor(row["equal_work_ratio"])),
        f"{100 * row['unsteady']:+.1f} %",
        row["flags"].replace(";", ", "),
    )


def _flagged(rows: Sequence[Row], names: Mapping[str, str]) -> list[str]:
    """`**F9** torch_pipeline, 2 workers, batch 20: trained 1,000 samples ...`, the same sentence once."""
    whom: dict[faults.Fault, list[str]] = {}
    for row in rows:
        for fault in faults.of(row, rows):
            whom.setdefault(fault, []).append(names[row["configuration"]])
    return [f"**{mark}** {'; '.join(who)}: {sentence}." for (mark, sentence), who in whom.items()]


def _without(rows: Sequence[Row], names: Mapping[str, str]) -> list[str]:
    """Who has no ratio, where no other sentence says why."""
    return [
        f"No ratio: {row['why_no_ratio']} ({names[row['configuration']]})."
        for row in rows
        if row["why_no_ratio"] and not row["not_comparable"]
    ]


def _legend(results: Results) -> list[str]:
    return [
        "The last epoch, after the warm-up ones: samples of all data-parallel ranks, seconds of the slowest rank, "
        "means over the repeats. Data: waiting for batches; training: in the step; running: wall time of both.",
        f"Epoch ratio: running seconds of {results.study.baseline_text or 'a baseline'} / these, as published studies "
        "have it [95 % interval between repeats, Welch]; at equal work: samples per second of the epoch / the "
        "baseline's. Against steady state: running seconds against steps x the mean timed step; beyond ±5 % marked "
        f"{UNSTEADY}.",
    ]
