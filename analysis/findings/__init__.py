"""What in a study's records should make one doubt it: every flaw of the published studies, and some of our own.

    Results --evidence.py--> configurations with the facts of their trials
                  |  one module a group of flaws; each detector a pure function
                  v
            list[Finding], the worst first

docs/flaws.md has the table: flaw, how it is met, the test that shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.findings.finding import Finding
    from analysis.frames.results import Results


def all_findings(results: Results) -> list[Finding]:
    """Every finding of a study, the worst first; none where there is nothing to say against it."""
    from analysis.findings import detectors

    return detectors.all_findings(results)
