"""Class-activation maps that are no class maps (F12): as `scaling-study maps` saw the model that it drew.

What a training itself says of maps is in its record (training_flaws.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence
from analysis.findings.finding import WRONG, Finding, Row
from scaling_study.records.maps import RIGHT


def maps_of_something_else(evidence: Evidence) -> Iterator[Finding]:
    """F12, once for each thing that is shown in their place."""
    others: dict[tuple[str, ...], set[str]] = {}
    for about in evidence.results.maps.about.values():
        shown = tuple(about.shown.get(key, right) for key, right in RIGHT.items())
        if shown != tuple(RIGHT.values()):
            others.setdefault(shown, set()).add(about.configuration)
    for (channels, kind), names in others.items():
        rows: list[Row] = [row for row in evidence.rows if row["configuration"] in names]
        text = (
            f"What is drawn as the model's own maps are {channels} channels, of the {kind} class "
            f"({finding.named(rows)}). Show the maps whose maxima are the classes' scores, of what is recognised."
        )
        yield finding.about("F12", "Maps of something else", text, WRONG, rows)
