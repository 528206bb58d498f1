"""Epochs as people report them, beside the same ratio at equal work, and what is wrong with comparing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import findings
from analysis.findings import DOUBT, WRONG, Evidence, Finding, grouped
from analysis.frames import configurations
from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.frames.rows import ConfigurationRow, as_rows, bounded, by_configuration
from analysis.show import notes
from analysis.show.layout import Listing
from analysis.text import bracketed, number, percent
from analysis.views.view import StudyTable, View
from scaling_study.models import MODELS
from scaling_study.stats.intervals import ratio

# Faults of an epoch's ratio: a mark for the row, and a sentence that names the fault. A row is one of epochs_table().

UNEQUAL_WORK, OTHER_MODEL, OTHER_STEPS, LOADING, UNSTEADY = "F9", "F10", "F13", "F17", "≠"
STEADY = 0.05  # of running seconds: beyond it the two ways of measuring disagree
MOST_LOADING = 0.1  # of running seconds
Row = ConfigurationRow
Fault = tuple[str, str]  # mark, sentence


def faults_of(row: Row, rows: Sequence[Row]) -> list[Fault]:
    """The faults of one row; `rows` are all, its baseline among them."""
    faults = []
    reference = next((other for other in rows if other["configuration"] == row["epoch_baseline"]), None)
    if reference is not None and reference["configuration"] != row["configuration"]:
        faults += _against(row, reference)
    if row["running_seconds"] and (share := row["data_seconds"] / row["running_seconds"]) > MOST_LOADING:
        faults.append((LOADING, f"{100 * share:.0f} % of the epoch went into waiting for data, not training (F28)"))
    if abs(row["unsteady"]) > STEADY:
        lasted, steady = number(row["running_seconds"]), number(row["steady_seconds"])
        by = f"its {row['steps']:,} steps {steady} s by the steps' own clock: {100 * row['unsteady']:+.0f} %"
        faults.append((UNSTEADY, f"the epoch lasted {lasted} s, and {by}"))
    return faults


def _against(row: Row, reference: Row) -> list[Fault]:
    """Differences between two epochs other than their framework and workers."""
    faults = []
    # A tail that fills no global batch is left out of an epoch: that much may differ.
    if abs(row["samples"] - reference["samples"]) >= max(row["global_batch"], reference["global_batch"]):
        ratios = f"the epoch ratio of {factor(row['epoch_ratio'])} is {factor(row['equal_work_ratio'])} at equal work"
        trained = f"trained {row['samples']:,} samples an epoch against {reference['samples']:,}"
        faults.append((UNEQUAL_WORK, f"{trained}: {ratios}"))
    if row["model"] != reference["model"]:
        departs = MODELS[str(row["model"])].departs.replace(f" ({OTHER_MODEL})", "")
        faults.append((OTHER_MODEL, f"compared with {reference['model']}, and is not it: {departs}"))
    if row["global_batch"] != reference["global_batch"]:
        faults.append((OTHER_STEPS, _steps(row, reference)))
    return faults


def _steps(row: Row, reference: Row) -> str:
    """Both readings of a batch that grew with the workers: the same for each of them, or the same for all together."""
    rates = row["used_learning_rate"], reference["used_learning_rate"]
    at = ""
    if all(map(known, rates)):
        at = f" and a learning rate of {rates[0]:g} against {rates[1]:g}"
        at = f" at one learning rate ({rates[0]:g})" if rates[0] == rates[1] else at
    same = row.get("same_batch_ratio")
    other = f"it is {factor(same)}" if known(same) else "no baseline was run"
    return (
        f"{row['steps']:,} optimiser steps an epoch against {reference['steps']:,}, with a global batch of "
        f"{row['global_batch']} against {reference['global_batch']}{at}: another training. The epoch ratio of "
        f"{factor(row['epoch_ratio'])} is at the same batch per worker; at the same global batch {other}"
    )


def factor(value: Any) -> str:
    """`12.0x`, `0.21x`; empty where unknown."""
    return f"{number(value)}x" if known(value) else ""


def by_fault(rows: Sequence[Row]) -> dict[Fault, list[Row]]:
    """Fault -> the rows that have it."""
    found = [(fault, row) for row in rows for fault in faults_of(row, rows)]
    return {fault: [row for _, row in pairs] for fault, pairs in grouped(found, lambda pair: pair[0]).items()}


ABOUT = ("configuration", "series", "series_order", "model", "framework", "workers", "batch_per_worker", "global_batch")
SECONDS = ("data_seconds", "training_seconds", "running_seconds")
MEASURED = (
    "steps",
    "samples",
    *SECONDS,
    "steady_seconds",
    "unsteady",
    "epoch_repeats",
    "samples_per_epoch_second",
    "used_learning_rate",
)
NO_RATIO = dict.fromkeys(
    (
        "epoch_baseline",
        "epoch_ratio",
        "epoch_ratio_low",
        "epoch_ratio_high",
        "equal_work_ratio",
        "same_batch_baseline",
        "same_batch_ratio",
        "why_no_ratio",
    )
)


def epochs_table(results: Results) -> pd.DataFrame:
    """ABOUT, MEASURED and NO_RATIO of every configuration that ran epochs: means over its repeats of the last epoch.

    Samples are summed over the ranks, seconds are of the rank whose epoch lasted longest. `unsteady` is
    running_seconds / steady_seconds - 1. Ratios are None with the reason in `why_no_ratio`; `same_batch_ratio` is the
    epoch ratio to a baseline with the same global batch, where the other was chosen by another. `flags`: `F9;F13`.
    """
    mine = measured(results)
    rows = [{**row, **mine[row["configuration"]]} for row in results.rows if row["configuration"] in mine]
    compared = [{**row, **NO_RATIO, **_compared(row, rows, results)} for row in rows]
    for row in compared:
        row["flags"] = ";".join(mark for mark, _ in faults_of(row, compared))
    columns = [*ABOUT, *MEASURED, *NO_RATIO, "flags", "parity", "not_comparable"]
    frame = pd.DataFrame(compared, columns=columns, dtype=object)
    return frame.sort_values(["model", "series_order", "global_batch"], kind="stable", ignore_index=True)


def measured(results: Results) -> dict[str, dict[str, Any]]:
    """Configuration -> what its last epoch took, and `values`: the running seconds of each repeat."""
    epochs = results.details.epochs
    steady = results.trials.set_index(["configuration", "repeat"]).step_seconds_mean
    last_epochs: dict[str, dict[str, Any]] = {}
    for name, ours in by_configuration(epochs[~epochs.warmup]).items():
        last = ours.groupby(["repeat", "rank"], as_index=False).last()
        slowest = last.sort_values("running_seconds").groupby("repeat").last()
        mean_step = steady.reindex([(name, repeat) for repeat in slowest.index]).to_numpy(dtype=float)
        means = {key: float(slowest[key].mean()) for key in SECONDS}
        expected = float(np.mean(slowest.steps.to_numpy() * mean_step))
        samples = int(last.groupby("repeat").samples.sum().max())
        last_epochs[name] = {
            "steps": int(slowest.steps.max()),
            "samples": samples,
            **means,
            "steady_seconds": expected,
            "unsteady": means["running_seconds"] / expected - 1,
            "epoch_repeats": len(slowest),
            "samples_per_epoch_second": samples / means["running_seconds"],
            "used_learning_rate": None if last.learning_rate.isna().all() else float(last.learning_rate.max()),
            "values": slowest.running_seconds.to_list(),
        }
    return last_epochs


def _compared(row: Row, rows: Sequence[Row], results: Results) -> dict[str, Any]:
    """The ratios of one row to its baseline among `rows`, or why there are none."""
    reference = _baseline(row, rows, results)
    if isinstance(reference, str):
        return {"why_no_ratio": reference}
    if held := next((side for side in (row, reference) if side["not_comparable"] or side["oversubscribed"]), None):
        return {"why_no_ratio": held["not_comparable"] or "oversubscribed"}
    columns: dict[str, Any] = {"epoch_baseline": reference["configuration"], "why_no_ratio": ""}
    if reference is row:
        return columns | {"epoch_ratio": 1.0, "equal_work_ratio": 1.0}
    gain = ratio(reference["values"], row["values"], first=(int(reference["planned"]), int(row["planned"])))
    columns |= bounded("epoch_ratio", gain.mean, gain.low, gain.high)
    columns["equal_work_ratio"] = row["samples_per_epoch_second"] / reference["samples_per_epoch_second"]
    if row["global_batch"] != reference["global_batch"]:
        other = _baseline(row, rows, results, batch="global_batch")
        if not isinstance(other, str) and not other["not_comparable"]:
            columns["same_batch_baseline"] = other["configuration"]
            columns["same_batch_ratio"] = ratio(other["values"], row["values"]).mean
    return columns


def _baseline(row: Row, rows: Sequence[Row], results: Results, batch: str | None = None) -> Row | str:
    """Its own model's, or that of the model it is a variant of."""
    reference = configurations.find(row, rows, results.study, batch=batch)
    like = MODELS[str(row["model"])].like if str(row["model"]) in MODELS else ""
    if isinstance(reference, str) and like:
        original = configurations.find(row, rows, results.study, model=like, batch=batch)
        return reference if isinstance(original, str) else original
    return reference


def listing(results: Results) -> Listing | None:
    """A row for each configuration that ran epochs; None where none did."""
    rows = as_rows(epochs_table(results))
    if not rows:
        return None
    ours = results.among(row["configuration"] for row in rows)
    names = dict(zip((row["configuration"] for row in rows), notes.named_with_batch(results, rows), strict=True))
    cells = [_cells(row, name) for row, name in zip(rows, notes.signed_names(results, rows), strict=True)]
    lines = [
        *configurations.sentences(ours),
        *_flagged(rows, names),
        *(  # where no other sentence says why
            f"No ratio: {row['why_no_ratio']} ({names[row['configuration']]})."
            for row in rows
            if row["why_no_ratio"] and not row["not_comparable"]
        ),
        *configurations.checked(ours),
        "The last epoch, after the warm-up ones: samples of all data-parallel ranks, seconds of the slowest rank, "
        "means over the repeats. Data: waiting for batches; training: in the step; running: wall time of both.",
        f"Epoch ratio: running seconds of {results.study.baseline_text or 'a baseline'} / these, as published studies "
        "have it [95 % interval between repeats, Welch]; at equal work: samples per second of the epoch / the "
        "baseline's. Against steady state: running seconds against steps x the mean timed step; beyond ±5 % marked "
        f"{UNSTEADY}.",
        notes.source(results),
    ]
    return Listing.from_rows(f"Epochs ({results.heading})", cells, lines)


def _cells(row: Row, name: str) -> dict[str, str]:
    published = factor(row["epoch_ratio"]) + bracketed(row["epoch_ratio_low"], row["epoch_ratio_high"], "{:.2f}".format)
    share = row["data_seconds"] / row["running_seconds"] if row["running_seconds"] else None
    return {
        "configuration": name,
        "workers": f"{row['workers']:,}",
        "global batch": f"{row['global_batch']:,}",
        "steps": f"{row['steps']:,}",
        "samples": f"{row['samples']:,}",
        **{key.replace("_seconds", " s"): number(row[key]) for key in SECONDS},
        "of which data": percent(share, 1),
        "epoch ratio, as published": "1 (baseline)" if row["epoch_baseline"] == row["configuration"] else published,
        "at equal work": factor(row["equal_work_ratio"]),
        "against steady state": f"{100 * row['unsteady']:+.1f} %",
        "flags": row["flags"].replace(";", ", "),
    }


def _flagged(rows: Sequence[Row], names: Mapping[str, str]) -> Iterator[str]:
    """`**F9** torch_pipeline, 2 workers, batch 20: trained 1,000 samples ...`, the same sentence once."""
    for (mark, sentence), of in by_fault(rows).items():
        yield f"**{mark}** {'; '.join(names[row['configuration']] for row in of)}: {sentence}."


TITLES = {
    UNEQUAL_WORK: ("F9", "Epochs of unlike work", WRONG, "Quote the ratio at equal work."),
    OTHER_MODEL: ("F10", "Another model", WRONG, "Compare it with its own kind alone."),
    OTHER_STEPS: ("F13", "Another number of optimiser steps", DOUBT, "Quote the ratio at one global batch."),
    LOADING: ("F17", "An epoch that waits for data", DOUBT, "Compare training seconds, or mend the loader."),
    UNSTEADY: ("F8", "More than steps in an epoch's time", DOUBT, "Compare the steps' own seconds."),
}
SHORTER = (
    "epoch",
    "An epoch shorter than its steps",
    DOUBT,
    "Its steps were faster than those before: time more epochs.",
)


def epoch_faults(evidence: Evidence) -> Iterator[Finding]:
    batch_key = evidence.results.study.batch_key
    rows = [row | {"batch": row[batch_key]} for row in as_rows(epochs_table(evidence.results))]
    for (mark, sentence), of in by_fault(rows).items():
        shorter = mark == UNSTEADY and of[0]["unsteady"] < 0
        flaw, title, severity, remedy = SHORTER if shorter else TITLES[mark]
        yield findings.about(flaw, title, f"{findings.named(of)}: {sentence}. {remedy}", severity, of)


VIEW = View(
    "How long does an epoch take?",
    (StudyTable("epochs", listing, epochs_table),),
    detectors=(epoch_faults,),
)
