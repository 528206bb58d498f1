"""What the table of epochs marks (analysis/epochs/faults.py), as findings: F9, F10, F13, F17, and F8 for "≠"."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.epochs import faults
from analysis.epochs.frame import table
from analysis.findings import finding
from analysis.findings.evidence import Evidence
from analysis.findings.finding import DOUBT, WRONG, Finding
from analysis.frames.baseline import value_of
from analysis.frames.row_types import ComparedEpoch, Named
from analysis.frames.rows import as_rows

TITLES = {
    faults.UNEQUAL_WORK: ("F9", "Epochs of unlike work", WRONG, "Quote the ratio at equal work."),
    faults.OTHER_MODEL: ("F10", "Another model", WRONG, "Compare it with its own kind alone."),
    faults.OTHER_STEPS: ("F13", "Another number of optimiser steps", DOUBT, "Quote the ratio at one global batch."),
    faults.LOADING: ("F17", "An epoch that waits for data", DOUBT, "Compare training seconds, or mend the loader."),
    faults.UNSTEADY: ("F8", "More than steps in an epoch's time", DOUBT, "Compare the steps' own seconds."),
}


def epoch_faults(evidence: Evidence) -> Iterator[Finding]:
    if evidence.results.details.epochs.empty:
        return
    marked = table(evidence.results)
    batch = evidence.results.study.batch_key
    rows = as_rows(marked, ComparedEpoch)
    for row in rows:
        row["batch"] = value_of(row, batch)
    rows_of: dict[faults.Fault, list[Named]] = {}
    for row in rows:
        for fault in faults.of(row, rows):
            rows_of.setdefault(fault, []).append(row)
    for (mark, sentence), of in rows_of.items():
        flaw, title, severity, remedy = TITLES[mark]
        yield finding.about(flaw, title, f"{finding.named(of)}: {sentence}. {remedy}", severity, of)
