"""Why: what holds each configuration back, with the evidence, and what would help most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from analysis.report.content import Part, Section, missing
from analysis.report.grids import of_listing
from analysis.report.material import Material
from analysis.tables import reasons
from analysis.why import frame
from analysis.why.bottleneck import bottlenecks

GAPS = {
    "bottleneck": ("Bottlenecks", "no configuration has phases, or a failure, to tell by"),
    "attribution": ("Lost efficiency", "no configuration of more than one worker has an efficiency and phases"),
    "remedies": ("What would help", "no configuration has phases to tell by"),
    "utilisation": ("Model FLOP/s and utilisation", "no record counts its FLOPs"),
    "frontier": ("Memory against batch", "peak memory was not measured at several batch sizes"),
}
TABLES = {
    "attribution": frame.attribution, "bottleneck": frame.bottleneck, "remedies": frame.remedy,
    "utilisation": frame.utilisation, "frontier": frame.frontier,
}  # fmt: skip
LISTINGS = {
    "attribution": reasons.attribution, "bottleneck": reasons.bottleneck, "remedies": reasons.remedy,
    "utilisation": reasons.utilisation, "frontier": reasons.frontier,
}  # fmt: skip
PICTURES = {"bottleneck": ("steps",), "utilisation": ("roofline",)}


def section(material: Material) -> Section:
    parts: list[Part] = []
    for name in GAPS:
        parts += material.parts(GAPS[name][0], partial(_part, name, material))
    return Section("why", "Why", material.text("the bottlenecks", lambda: lead(material)), tuple(parts))


def _part(name: str, material: Material) -> Iterator[Part]:
    listing = LISTINGS[name](material.results)
    if listing is None:
        yield missing(f"{GAPS[name][0]}: not known", GAPS[name][1])
        return
    yield of_listing(listing, f"{name}.csv", TABLES[name](material.results))
    yield from material.drawn(*PICTURES.get(name, ()))


def lead(material: Material) -> str:
    """How many configurations are held back by what."""
    kinds = Counter(bottleneck.kind for bottleneck in bottlenecks(material.results) if bottleneck.shares)
    if not kinds:
        return "Nothing can be said: no phases were measured."
    counted = [f"{kind}: {number}" for kind, number in kinds.most_common()]
    return f"What takes most of a step, by number of configurations: {', '.join(counted)}."
