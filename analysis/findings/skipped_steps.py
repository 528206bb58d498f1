"""Did every timed step train? With fp16 a step whose gradients overflow is left out, and is shorter than the others."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence
from analysis.findings.finding import DOUBT, Finding


def skipped_steps(evidence: Evidence) -> Iterator[Finding]:
    """Configurations whose loss scaler left out steps of the timed window: it had not settled in the warm-up."""
    skipped = [(row, max(evidence.fact(row, "skipped_steps"), default=0)) for row in evidence.rows]
    concerned = [(row, int(count)) for row, count in skipped if count]
    if not concerned:
        return
    rows = [row for row, _ in concerned]
    most = max(count for _, count in concerned)
    text = (
        f"The loss scaler of fp16 left out up to {finding.count(most, 'optimiser step')} of a timed window "
        f"({finding.named(rows)}): gradients were not finite, nothing was updated, and the step was shorter. Raise "
        "warmup_steps until the scale has settled."
    )
    yield finding.about("skipped steps", "Timed steps that trained nothing", text, DOUBT, rows)
