"""Was the machine the study's own while it ran, and the same for what is compared? Other processes' work, and what
changed between two sweeps, are in the numbers, and no statistics undo it."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis.findings import finding
from analysis.findings.evidence import Evidence, grouped
from analysis.findings.finding import DOUBT, NOTE, Finding
from scaling_study.datasets import SCENES
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
    yield from _apart(evidence)
    if evidence.results.synthetic:
        rows = [row for row in evidence.rows if "synthetic" in str(row["data_source"])]
        who = finding.named(rows, evidence.rows)
        drawn = all(str(row["data_source"]).startswith(SCENES) for row in rows)
        figures = "figures are of drawn scenes, and of no operation" if drawn else "quote no loss"
        text = f"Trained on generated data: {who}. Speeds may be those of real data; {figures}."
        yield finding.about("synthetic", "Synthetic data", text, NOTE, rows)


def _apart(evidence: Evidence) -> Iterator[Finding]:
    """Compared configurations whose repeats were not interleaved: the last of one began before the first of another."""
    runs = evidence.runs[evidence.runs.status == "ok"]
    at = pd.to_datetime(runs.started_at, utc=True, errors="coerce", format="ISO8601")
    began = (at - at.min()).dt.total_seconds().groupby(runs.configuration)
    spans = {str(name): (min(own), max(own)) for name, own in began if len(own) > 1}
    groups = grouped(evidence.rows, lambda row: (row["model"], row["batch"])).values()
    compared = [*evidence.pairs, *((ours[0], row) for ours in groups for row in ours[1:])]
    apart = []
    for row, other in compared:
        a, b = (spans.get(str(side["configuration"])) for side in (row, other))
        if a and b and (gap := max(a[0], b[0]) - min(a[1], b[1])) > 0:
            apart.append((gap, row, other))
    if apart:
        seconds, row, other = max(apart, key=lambda pair: pair[0])
        text = (
            f"{finding.count(len(apart), 'comparison')} of configurations that were not measured in turns, up to "
            f"{seconds / 60:.0f} minutes apart ({finding.named([row, other])}): a machine that changed in between is "
            "in the ratio. Measure them together: --retry ok."
        )
        rows = [side for _, *pair in apart for side in pair]
        yield finding.about("apart", "Compared, but measured at different times", text, DOUBT, rows)
