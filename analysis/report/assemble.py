"""Material -> a report: the sections in the order in which a reader wants them."""

from __future__ import annotations

from functools import partial

from analysis.report.content import Report, Section, lost
from analysis.report.material import Material
from analysis.report.sections import answer, figures, next, provenance, published, tables, trust, why

SECTIONS = {
    "The answer": answer, "Can you trust it": trust, "Tables": tables, "Figures": figures, "Why": why,
    "What next": next, "Published beside measured": published, "Provenance": provenance,
}  # fmt: skip


def report(material: Material) -> Report:
    results = material.results
    counted = results.configurations.n > 0
    planned = len(counted) + len(results.unseen)
    facts = (
        results.study.machine_text,
        results.dates,
        f"{int(counted.sum())} of {planned} configurations measured, {len(results.runs):,} trials",
        *results.marks,
    )
    sections = tuple(
        material.salvage.or_else(title, partial(module.section, material), partial(_lost, title))
        for title, module in SECTIONS.items()
    )
    return Report(results.study.name, tuple(filter(None, facts)), sections, tuple(material.salvage.lost))


def _lost(title: str, why: str) -> Section:
    return Section(title.lower().replace(" ", "-"), title, "", (lost(title, why),))
