"""Was one program measured, or several? A sweep that is resumed after an upgrade compares two of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence
from analysis.findings.finding import DOUBT, NOTE, Finding

MOST_NAMES = 4
OURS = "scaling_study"  # its version says less than the commit does


def mixed_versions(evidence: Evidence) -> Iterator[Finding]:
    """Libraries and commits that differ between the trials of a study; those of one framework only are its own."""
    facts = [fact for row in evidence.rows for fact in evidence.facts.get(str(row["configuration"]), ())]
    versions: dict[str, Counter[str]] = {}
    for fact in facts:
        for word in filter(None, str(fact["versions"] or "").split(", ")):
            name, _, version = word.partition(" ")
            versions.setdefault(name, Counter())[version] += 1
    several = {name: counts for name, counts in versions.items() if len(counts) > 1 and name != OURS}
    if several:
        each = "; ".join(f"{name} {_counted(counts)}" for name, counts in sorted(several.items()))
        text = (
            f"The trials did not all have the same libraries, and a difference may be theirs: {each}. Run the older "
            "ones again: --retry ok."
        )
        yield Finding("versions", "Several versions of a library", text, DOUBT)
    commits = Counter(str(fact["commit"]) for fact in facts if fact["commit"])
    if len(commits) > 1:
        text = (
            f"Measured by {finding.count(len(commits), 'commit')} of this program: {_counted(commits)}. Where they "
            "differ in what is timed, run the older trials again: --retry ok."
        )
        yield Finding("commits", "Several commits", text, NOTE)


def _counted(counts: Counter[str]) -> str:
    """`2.4.1 (30 trials), 2.5.0 (6 trials)`."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} ({finding.count(count, 'trial')})" for name, count in ranked[:MOST_NAMES]]
    return ", ".join(shown) + (", ..." if len(counts) > MOST_NAMES else "")
