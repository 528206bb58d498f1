"""What is not in the results: records that cannot be read, and configurations of the study without any.

The fastest may be among them, and nothing else on a page would say so.
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.findings.evidence import Evidence
from analysis.findings.finding import DOUBT, MOST_NAMES, Finding, count


def missing_results(evidence: Evidence) -> Iterator[Finding]:
    """Records that were left out, and configurations that are planned and unknown: one finding of each."""
    skipped, unseen = evidence.results.skipped, evidence.results.unseen
    if skipped:
        text = (
            f"{count(len(skipped), 'record')} could not be read, and what they hold is in no number here: run those "
            "trials again (the sweep does so by itself), or take their folders away."
        )
        yield Finding("unreadable", "Records that cannot be read", text, DOUBT)
    if unseen:
        more = f" and {len(unseen) - MOST_NAMES} more" if len(unseen) > MOST_NAMES else ""
        text = (
            f"{len(unseen)} of the {count(len(evidence.results.study.configurations or ()), 'configuration')} of the "
            f"study {'has' if len(unseen) == 1 else 'have'} no record that can be read: "
            f"{'; '.join(unseen[:MOST_NAMES])}{more}. The fastest may be among them; the sweep goes on where it "
            "stopped."
        )
        yield Finding("unmeasured", "Configurations without a record", text, DOUBT)
