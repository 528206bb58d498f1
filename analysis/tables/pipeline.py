"""The table of pipelines, and under it the cuts that limit the speed-up."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames import comparability, series
from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow, Pipeline
from analysis.frames.rows import as_rows
from analysis.pipeline import shape, theory
from analysis.pipeline.frame import KEYS, parted, table
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.tables.throughput import throughput_text
from analysis.text.number_formats import megabytes, percent_to_a_tenth, percentage_points, percents

BALANCED = 0.9  # a cut that allows less than this share of the ideal speed-up is said loudly
MOST_NOTES = 6
HEADER = (
    *("schedule", "stages", "virtual stages", "micro-batches", "replicas", "stage cut", "global batch"),
    *("samples/s", "bubble measured", "theory", "replay, equal stages", "replay, measured stages"),
    *("the cut adds", "transfers and overhead add", "computing", "speed-up", "cap of the cut"),
    *("share of time by stage", "share of parameters", "activations by worker (MB)"),
)


def listing(results: Results) -> Listing | None:
    """A row a pipeline; None where the study has none."""
    pipelines = table(results)
    if pipelines.empty:
        return None
    configurations = results.configurations
    ours = configurations[configurations.configuration.isin(pipelines.configuration)]
    by_name = {row["configuration"]: row for row in results.rows}
    names = [key for key in series.keys(configurations) if key not in KEYS]
    first = [_name(by_name[name], names, pipelines.model.nunique() > 1) for name in pipelines.configuration]
    lines = [
        *comparability.sentences(ours), *unbalanced(pipelines), *_unplayed(pipelines), *_noted(pipelines, results),
        *comparability.checked(ours), *_legend(pipelines), notes.source(results),
    ]  # fmt: skip
    shown = zip(first, as_rows(pipelines, Pipeline), strict=True)
    rows = [(name, *_cells(row, by_name[row["configuration"]])) for name, row in shown]
    return Listing(f"Pipelines ({results.heading})", ("configuration", *HEADER), tuple(rows), tuple(lines))


def unbalanced(pipelines: pd.DataFrame) -> list[str]:
    """One loud sentence for each cut whose busiest worker keeps every schedule below BALANCED of the ideal."""
    cut = ["model", "framework", "stages", "virtual_stages", "stage_cut", "layers", "busiest_worker"]
    held = pipelines[(pipelines.most_speedup.astype(float) < BALANCED * pipelines.stages.astype(float)).fillna(False)]
    lines = []
    for _, group in held.groupby(cut, sort=False, dropna=False):
        worst = group.sort_values("most_speedup").iloc[0]
        lines.append(
            f"**{_who(worst)} does {100 / worst.most_speedup:.0f} % of the work: the speed-up of any schedule is at "
            f"most {worst.most_speedup:.2f}, see F16** ({worst.model}: {comparability.names(group, pipelines)})."
        )
    return lines


def _who(row: Any) -> str:
    p, v = int(row.stages), int(row.virtual_stages)
    if v == 1:
        return f"stage {row.busiest_worker} (of 0 to {p - 1})"
    return f"worker {row.busiest_worker} (of 0 to {p - 1}, {v} stages each)"


def _name(row: ConfigurationRow, names: list[str], several_models: bool) -> str:
    label = series.label(row, names, several_frameworks=True)
    model = f"{row['model']}, " if several_models else ""
    return f"{model}{label} {comparability.sign(row)}".rstrip()


def _cells(row: Pipeline, configuration: ConfigurationRow) -> tuple[str, ...]:
    measured = percent_to_a_tenth(row["bubble"])
    if measured:
        measured += f" ({100 * row['bubble_low']:.1f} to {100 * row['bubble_high']:.1f})"
    gain = f"{row['speedup']:.2f}" if known(row["speedup"]) else ""
    cap = f"{row['cap']:.2f} of {row['stages']}" if known(row["cap"]) else ""
    activations = parted(row["activations_bytes"])
    shape_of = [row["schedule"], row["stages"], row["virtual_stages"], row["micro_batches"], row["replicas"]]
    return (
        *(str(value) if known(value) else "" for value in (*shape_of, row["stage_cut"], row["global_batch"])),
        throughput_text(configuration),
        *(measured, *(percent_to_a_tenth(row[name]) for name in ("theory", "replay_equal", "replay_measured"))),
        *(percentage_points(row[name]) for name in ("added_by_cut", "added_by_transfers")),
        *(f"{row['computing']:.2f}x" if known(row["computing"]) else "", gain, cap),
        *(percents(parted(row[name])) for name in ("time_shares", "parameter_shares")),
        " / ".join(megabytes(size) for size in activations),
    )


def _unplayed(pipelines: pd.DataFrame) -> list[str]:
    """Whose order could not be replayed, and why."""
    return [
        f"Not replayed: {why} ({comparability.names(group, pipelines)})."
        for why, group in pipelines[pipelines.replay_why.notna()].groupby("replay_why", sort=False)
    ]


def _noted(pipelines: pd.DataFrame, results: Results) -> list[str]:
    """What the ranks themselves said, as of BatchNorm's micro-batches: once, with whom it is of."""
    ours = results.details.notes
    ours = ours[ours.configuration.isin(pipelines.configuration)]
    lines = [
        f"{note} ({comparability.names(pipelines[pipelines.configuration.isin(group.configuration)], pipelines)})."
        for note, group in ours.groupby("note", sort=False)
    ]
    more = [f"{len(lines) - MOST_NOTES} more notes: see the records."] if len(lines) > MOST_NOTES else []
    return lines[:MOST_NOTES] + more


def _legend(pipelines: pd.DataFrame) -> list[str]:
    lines = [
        "Bubble: the share of workers x makespan without a forward or backward; mean over the instrumented steps "
        "(smallest to largest). Replay: the same order simulated without transfers, with equal stages and with the "
        "measured seconds of each stage. Measured = replay with equal stages + what the cut adds + what transfers and "
        "overhead add, in percentage points.",
    ]
    rows = as_rows(pipelines.drop_duplicates(["schedule", "theory_formula", "theory_why"]), Pipeline)
    reasons = [f" [none claimed: {row['theory_why']}]" if row["theory_why"] else "" for row in rows]
    formulas = [f"{row['schedule']}: {row['theory_formula']}{why}" for row, why in zip(rows, reasons, strict=True)]
    lines.append(f"Theory, with p workers, v stages each, m micro-batches: {'; '.join(formulas)}.")
    if pipelines.computing.notna().any():
        lines.append(
            "Computing: the seconds that all workers compute for a sample, over those of one process. Above 1, "
            "micro-batches are less efficient than the whole batch, or workers contend (memory, caches, clock). "
            "Speed-up = workers x (1 - bubble) / computing, without the input and the optimiser's step."
        )
    if pipelines.cap.notna().any():
        lines.append(
            "Cap of the cut: upper bound of this schedule's speed-up with these shares of the time s (gpipe: "
            "m / (1 + (m-1) max s); any schedule: 1 / max s), of the number of workers (F16)."
        )
    if (pipelines.virtual_stages.astype(int) > 1).any():
        lines.append("Activations: by worker, all its stages together; worker 0 first.")
    if any(shape.schedule(row) == theory.NAIVE for row in rows):
        lines.append("Naive: the whole batch goes from stage to stage, so one worker computes at a time.")
    return lines
