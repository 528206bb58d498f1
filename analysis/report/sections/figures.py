"""Figures: the study as pictures, each also a file for a paper."""

from __future__ import annotations

from analysis.report.content import Part, Section, missing
from analysis.report.material import Material

ORDER = (
    *("maps", "pointing"),  # what a model looks at comes before how fast it learned to
    *("throughput", "frameworks", "speedup", "allreduce-gain", "distributions", "steptimes", "waterfall"),
    *("frontier", "pareto", "timelines", "timeline", "network"),
)
ELSEWHERE = ("drift", "steps", "roofline", "scaling")  # beside what they explain
GAPS = {
    "speedup": ("No speed-up figure", "no configuration of more than one worker has a speed-up"),
    "allreduce-gain": ("No figure of the 16-bit gain", "no pair of configurations differs in its allreduce alone"),
    "waterfall": ("No waterfall of efficiency", "phases of a configuration with a speed-up were not measured"),
    "frontier": ("No figure of memory against batch", "peak memory was not measured at several batch sizes"),
    "pareto": ("No figure of cost against time", "it needs two comparable configurations"),
}


def section(material: Material) -> Section:
    known = material.drawn(*ORDER)
    others = [
        picture
        for name, picture in material.pictures.items()
        if picture not in known and not name.startswith(ELSEWHERE)
    ]
    parts: list[Part] = [*known, *others]
    parts += [missing(what, why) for name, (what, why) in GAPS.items() if not material.drawn(name)]
    lead = (
        "Intervals are 95 %, between repeats. Each figure is also in figures/, as PNG and SVG."
        if known or others
        else "No figures: nothing was measured."
    )
    return Section("figures", "Figures", lead, tuple(parts))
