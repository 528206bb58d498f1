"""Was the machine the study's own while it ran? Other processes' work is in the numbers, and no statistics undo it."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence
from analysis.findings.finding import DOUBT, NOTE, Finding
from scaling_study.records.store import BUSY_CORES


def disturbances(evidence: Evidence) -> Iterator[Finding]:
    runs = evidence.runs
    others = runs.busy_elsewhere_cores
    disturbed = runs[others > BUSY_CORES]
    if len(disturbed):
        names = set(disturbed.configuration)
        rows = [row for row in evidence.rows if row["configuration"] in names]
        text = (
            f"During {len(disturbed)} of {others.notna().sum()} runs other processes kept more than {BUSY_CORES} cores "
            f"busy, {others.max():.1f} at most, and were measured too. Quiet the machine, and run them again: "
            "--retry ok."
        )
        yield finding.about("busy", "The machine was not quiet", text, DOUBT, rows)
    if evidence.results.synthetic:
        rows = [row for row in evidence.rows if "synthetic" in str(row["data_source"])]
        who = finding.named(rows, evidence.rows)
        text = f"Trained on generated data: {who}. Speeds may be those of real data; quote no loss."
        yield finding.about("synthetic", "Synthetic data", text, NOTE, rows)
