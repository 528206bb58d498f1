"""Published beside measured: the ratios and outcomes that five public studies claim, and the same ones here."""

from __future__ import annotations

from analysis.published import side_by_side
from analysis.report.content import Part, Section, Text
from analysis.report.grids import of_listing
from analysis.report.material import Material
from analysis.tables import published, published_outcomes


def section(material: Material) -> Section:
    claims = side_by_side.table(material.results)
    grids = published.listing(material.results)
    outcomes = published_outcomes.listing(material.results)
    parts: list[Part] = []
    if outcomes:
        parts.append(of_listing(outcomes, "published-outcomes.csv", published_outcomes.table(material.results)))
        grids = [grid for grid in grids if grid.rows]
    parts += [of_listing(grid, "published.csv", claims) for grid in grids if grid.rows]
    parts += [Text(note, "note") for grid in grids if not grid.rows for note in grid.notes]
    verdicts = claims.verdict.value_counts().to_dict() if len(claims) else {}
    verdict_text = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    lead = (
        f"Ratios are compared, not speeds: the machines differ. {verdict_text}."
        if verdict_text
        else "This study measured no published configuration."
    )
    if outcomes and not verdict_text:
        lead = "What the published trainings came to, beside those here: accuracies and losses, never seconds."
    return Section("published", "Published beside measured", lead, tuple(parts))
