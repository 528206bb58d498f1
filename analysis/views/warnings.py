"""All detectors of findings, the worst finding first; findings, noise and drift in words and as figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis.execution import Salvage
from analysis.findings import DOUBT, Evidence, Finding, count, grouped, ordered
from analysis.frames.configurations import known
from analysis.frames.results import Results
from analysis.show import notes, style
from analysis.show.layout import Listing
from analysis.show.style import EndLabel
from analysis.statistics import noise_levels
from analysis.statistics.noise_levels import Canary, Levels
from analysis.text import two_figure_percentage
from analysis.views import allreduce_gain, communication, epochs, maps, noise, pipelines, timing, training_flaws, work
from analysis.views.noise import Drift, Floor
from analysis.views.timing import share

if TYPE_CHECKING:
    from analysis.findings import Finding
    from analysis.frames.results import Results

# All detectors, in the order in which a reader wants to hear of what they find.

Detector = Callable[[Evidence], Iterator[Finding]]
DETECTORS: tuple[Detector, ...] = (
    work.wrong_models,
    work.unequal_work,
    epochs.epoch_faults,
    work.superlinear_speedups,
    allreduce_gain.mixed_precisions,
    work.unequal_steps,
    timing.loader_limits,
    timing.timing_flaws,
    work.skipped_steps,
    communication.slow_backends,
    pipelines.unbalanced_cuts,
    training_flaws.training_flaws,
    maps.maps_of_something_else,
    timing.batch_cliffs,
    noise.noise_and_drift,
    noise.disturbances,
    timing.mixed_versions,
    timing.missing_results,
)


def all_findings(results: Results) -> list[Finding]:
    """What each of DETECTORS finds, the worst first. One that fails on what nobody foresaw is a finding itself."""
    if not (results.configurations.n > 0).any():
        return []
    evidence, salvage = Evidence(results), Salvage()
    findings: list[Finding] = []
    for detector in DETECTORS:
        findings += salvage.made(_name(detector), partial(_all, detector, evidence), [])
    return ordered((*findings, *map(_unchecked, salvage.lost)))


def _all(detector: Detector, evidence: Evidence) -> list[Finding]:
    return list(detector(evidence))


def _name(detector: Detector) -> str:
    """`the detector of batch cliffs`: each module looks for one kind of flaw."""
    return f"the detector of {detector.__name__.replace('_', ' ')}"


def _unchecked(why: str) -> Finding:
    text = f"{why}. What it looks for may be here unseen; please report it."
    return Finding("unchecked", "A check that failed", f"{text[0].upper()}{text[1:]}", DOUBT)


# Which of the published flaws (F1 to F28) the records of a study can show, and why not the others.
#
# A detector is silent both where a flaw is absent and where the study has nothing that could have it. Only the first
# is
# an argument for the study, so the report states the second.

PUBLISHED = tuple(f"F{number}" for number in range(1, 29))
OF_A_TRAINING = (
    *dict.fromkeys(flaw for flaw, *_ in training_flaws.LOOKS),
    "F23",
    "F26",
)  # and optimizer_steps.py


def _trained(evidence: Evidence) -> bool:
    return any(any(evidence.fact(row, "training")) for row in evidence.rows)


def _epochs(evidence: Evidence) -> bool:
    return not evidence.results.details.epochs.empty or any(known(row["epochs"]) for row in evidence.rows)


def _several_gpus(evidence: Evidence) -> bool:
    return any(row["device"] == "cuda" and int(row["workers"]) > 1 for row in evidence.rows)


def _sharded(evidence: Evidence) -> bool:
    return any(evidence.fact(row, "units") for row in evidence.rows)


def _several_batches(evidence: Evidence) -> bool:
    alike = grouped(evidence.rows, lambda row: (row["model"], row["framework"], row["workers"]))
    return any(len({row["global_batch"] for row in rows}) > 1 for rows in alike.values())


def _instrumented(evidence: Evidence) -> bool:
    return any(share(evidence, row) is not None for row in evidence.rows)


NEEDED: tuple[tuple[tuple[str, ...], Callable[[Evidence], bool], str], ...] = (
    (OF_A_TRAINING, _trained, "no run was trained to a result"),
    (("F8", "F13"), _epochs, "no whole epochs were timed"),
    (("F15", "F16"), lambda evidence: not evidence.results.details.stages.empty, "no pipeline was run"),
    (("F3", "F14"), _several_gpus, "no trial ran on several GPUs"),
    (("F24",), _sharded, "no framework reported units of sharded weights"),
    (("F4",), _several_batches, "nothing was run at several batch sizes"),
    (("F7", "F21"), lambda evidence: len({row["framework"] for row in evidence.rows}) > 1, "one framework was run"),
    (("F6",), _instrumented, "no step has its data time"),
    (("F28",), lambda evidence: bool(evidence.pairs) and _instrumented(evidence), "no baseline has its data time"),
)


def not_looked_for(evidence: Evidence) -> dict[str, str]:
    """Flaw -> why no detector could find it in these records; in the order of their numbers."""
    missing = {flaw: why for flaws, holds, why in NEEDED if not holds(evidence) for flaw in flaws}
    return {flaw: missing[flaw] for flaw in PUBLISHED if flaw in missing}


def sentence(evidence: Evidence) -> str:
    """`16 of the 28 flaws of published studies were looked for. Not looked for: F3, F14 (no trial ran on ...); ...`"""
    missing = not_looked_for(evidence)
    counted = f"{len(PUBLISHED) - len(missing)} of the {len(PUBLISHED)} flaws of published studies were looked for"
    reasons = dict.fromkeys(missing.values())
    each = "; ".join(f"{', '.join(flaw for flaw in missing if missing[flaw] == why)} ({why})" for why in reasons)
    return f"{counted} (docs/flaws.md).{f' Not looked for: {each}.' if each else ''}"


# Findings as a table; the noise floor, drift and levels of noise of the machine in a sentence each.

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


# The machine over the time of the sweep: each run against the mean of its configuration, with the trend.
#
# What a study without drift shows is a level cloud as thick as the noise floor. The sentinel, where there is one, is a
# line through it.

SHORT = 2.0  # hours; below, the axis is in minutes
SENTINEL = "the sentinel"


def draw_drift(results: Results) -> dict[str, Figure]:
    """`drift`, where enough configurations were repeated for a floor or a trend."""
    runs = noise.table(results)
    least, moved = noise.floor(runs), noise.drift(runs)
    if least is None and moved is None:
        return {}
    blue, orange = style.style_colours(2)
    layout = style.Layout(
        panel_width=4.6, panel_height=2.0, left=style.left_of(["+10.0 %"]), above=0.16,
        gutters=(style.gutter([SENTINEL]) if runs.sentinel.any() else 0.2,),
    )  # fmt: skip
    title, footnote = f"The machine over the sweep: {results.study.name}", _footnote(results, least, moved)
    sheet = style.sheet(1, 1, layout, title, footnote)
    axis, _ = sheet.at(0)
    hours = float(runs.hours.max())
    scale, unit = (60.0, "minutes") if hours < SHORT else (1.0, "hours")
    at = scale * runs.hours.to_numpy(float)
    if least is not None:
        axis.axhspan(-least.spread, least.spread, color=style.PALE, zorder=0)
    axis.axhline(0.0, color=style.GREY, linewidth=0.8, zorder=1)
    axis.plot(at, runs.relative, linestyle="", marker="o", markersize=3, color=blue, alpha=0.6, markeredgewidth=0)
    labels = _sentinel(axis, runs, at, orange)
    if moved is not None:
        trend = np.expm1(np.log1p(moved.total) * (runs.place.to_numpy(float) - 0.5))
        axis.plot(at, trend, color=style.DARK, linestyle="-" if moved.found else ":", linewidth=1.2, zorder=4)
    style.name_y(axis, "against its own mean", layout)
    axis.set_xlabel(f"{unit} since the first run began")
    axis.grid(False, axis="x")
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:+.3g} %" if value else "0"))
    style.end_labels(axis, labels, layout.panel_height)
    return {"drift": sheet.figure}


def _sentinel(axis: Axes, runs: pd.DataFrame, at: noise.Values, colour: str) -> list[EndLabel]:
    ours = runs.sentinel.to_numpy(bool)
    if not ours.any():
        return []
    relative = runs.relative.to_numpy(float)[ours]
    axis.plot(at[ours], relative, marker="D", markersize=4, color=colour, linewidth=1.0, zorder=3)
    return [EndLabel(float(at[ours][-1]), float(relative[-1]), SENTINEL, colour)]


def _footnote(results: Results, least: Floor | None, moved: Drift | None) -> list[str]:
    lines = ["Points: samples per second of one run, against the mean of all repeats of its configuration."]
    lines += [f"Shaded: {floor_text(least)}"] if least is not None else []
    lines.append(f"Line: {drift_text(moved)}" if moved is not None else drift_text(moved))
    return [*lines, f"{notes.source(results)}."]
