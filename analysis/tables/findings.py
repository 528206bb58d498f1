"""Findings as a table; the noise floor, drift and levels of noise of the machine in a sentence each."""

from __future__ import annotations

import math

from analysis.findings import all_findings, noise
from analysis.findings.finding import count
from analysis.findings.noise import Drift, Floor
from analysis.frames.results import Results
from analysis.statistics import noise_levels
from analysis.statistics.noise_levels import Canary, Levels
from analysis.tables import notes
from analysis.tables.layout import Listing
from analysis.text.number_formats import two_figure_percentage

HEADER = ("finding", "severity", "flaw", "evidence")
LEGEND = (
    "Wrong: an invalid comparison. Doubt: one that may mislead. Note: context. F1 to F28: flaws of published studies "
    "(docs/flaws.md)."
)


def listing(results: Results) -> list[Listing]:
    """One table, a row a finding, the worst first; without rows where nothing was found, and then it says so."""
    rows = tuple((finding.title, finding.severity, finding.flaw, finding.text) for finding in all_findings(results))
    measured = bool((results.configurations.n > 0).any())
    nothing = "No warnings." if measured else "Nothing was measured."
    lines = (*(() if rows else (nothing,)), LEGEND, *machine(results), notes.source(results))
    return [Listing(f"Warnings ({results.heading})", HEADER, rows, lines)]


def machine(results: Results) -> list[str]:
    """What repeats say of the machine: its noise floor, whether it drifted, and where noise is that rounds show."""
    runs = noise.table(results)
    least = noise.floor(runs)
    floor = [floor_text(least)] if least is not None else ["Noise floor: not known, too few repeats."]
    levels, canary = noise_levels.levels(results), noise_levels.canary(results)
    of_rounds = [*([levels_text(levels)] if levels else []), *([canary_text(canary, results)] if canary else [])]
    return [*floor, drift_text(noise.drift(runs)), *of_rounds]


def floor_text(least: Floor) -> str:
    """`Noise floor: ±1.2 %, one standard deviation between repeats of the sentinel (95 % interval 0.9 to 1.8 %).`"""
    whose = "the sentinel" if least.sentinel else f"{least.configurations} configurations, pooled"
    return (
        f"Noise floor: ±{two_figure_percentage(least.spread)} %, one standard deviation between repeats of {whose} "
        f"(95 % interval {two_figure_percentage(least.low)} to {two_figure_percentage(least.high)} %)."
    )


WHAT_HELPS = {
    "processes": "what a launch does to all of its processes, which more launches narrow",
    "launches": "what a launch does to a configuration by itself, which more launches narrow",
    "rounds": "rounds, which more of them or longer blocks narrow",
}


def levels_text(levels: Levels) -> str:
    """`Levels of noise: steps of a block ±6 %, rounds ±2.1 %, launches of a configuration ±2 %, ...`"""
    spreads = {
        "steps of a block": levels.steps, "rounds": levels.rounds, "launches of a configuration": levels.alone,
        "launches of a set of processes": levels.processes,
    }  # fmt: skip
    each = ", ".join(f"{name} ±{two_figure_percentage(sd)} %" for name, sd in spreads.items() if sd == sd)
    most = max(levels.parts.items(), key=lambda part: part[1], default=None)
    largest = f" Most of a ratio's uncertainty ({100 * most[1]:.0f} %) is {WHAT_HELPS[most[0]]}." if most else ""
    best = levels.cheapest_rounds
    cheapest = (
        f" Cheapest are {count(best, 'round')} a launch, as one takes {levels.start_seconds:.0f} s to start and "
        f"{levels.round_seconds:.1f} s a round; here there were {levels.rounds_a_launch:.3g}."
    )
    return (
        f"Levels of noise (one standard deviation, {levels.launches} launches in rounds): {each}; what came over all "
        f"at once, ±{two_figure_percentage(levels.together)} %, cancels in ratios.{largest}{cheapest * bool(best)}"
    )


def canary_text(canary: Canary, results: Results) -> str:
    """`Canary (resnet8, single, batch 32): from the first block of a launch to its last, throughput changed by ...`"""
    rows = [row for row in results.rows if row["configuration"] in canary.configurations]
    names = "; ".join(f"{row['model']}, {row['series']}, batch {row['batch']}" for row in rows)
    changes = ", ".join(f"{two_figure_percentage(math.expm1(by), '+')} %" for by in canary.changes.values())
    noise = f" (noise ±{two_figure_percentage(canary.noise)} %)" if canary.freedom else ""
    changed = (
        f" In {', '.join(canary.changed)} that is more than noise: the machine changed meanwhile, or what these "
        "processes had left behind slowed them."
    )
    return (
        f"Canary ({names}): from the first block of a launch to its last, throughput changed by {changes}{noise}."
        f"{changed * bool(canary.changed)}"
    )


def drift_text(moved: Drift | None) -> str:
    """The trend in a sentence, or that none can be known."""
    if moved is None:
        few = f"fewer than {noise.FEWEST_BLOCKS * noise.BLOCK} runs, or {noise.FEWEST_BLOCKS} launches that they shared"
        return f"Drift: not known, too few repeats ({few})."
    seen = "yes" if moved.found else "not significant"
    test = (
        f"p = {moved.p:.2g}, Kendall's test within {moved.configurations} configurations, {moved.blocks} blocks of time"
    )
    return f"Drift: {seen}, {two_figure_percentage(moved.total, '+')} % from the first run to the last ({test})."
