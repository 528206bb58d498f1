"""Published beside measured: the ratios that five public studies claim, and the same ones here."""

from __future__ import annotations

from analysis.published import side_by_side
from analysis.report.content import Part, Section, Text
from analysis.report.grids import of_listing
from analysis.report.material import Material
from analysis.tables import published


def section(material: Material) -> Section:
    claims = side_by_side.table(material.results)
    grids = published.listing(material.results)
    parts: list[Part] = [of_listing(grid, "published.csv", claims) for grid in grids if grid.rows]
    parts += [Text(note, "note") for grid in grids if not grid.rows for note in grid.notes]
    verdicts = claims.verdict.value_counts().to_dict() if len(claims) else {}
    verdict_text = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    lead = (
        f"Ratios are compared, not speeds: the machines differ. {verdict_text}."
        if verdict_text
        else "This study measured no published configuration."
    )
    return Section("published", "Published beside measured", lead, tuple(parts))
