"""All detectors, in the order in which a reader wants to hear of what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from analysis.execution.lost_parts import Salvage
from analysis.findings import (
    absent,
    backend,
    cliffs,
    epochs,
    machine,
    models,
    noise,
    precision,
    provenance,
    speedups,
    stages,
    steps,
    timing,
    trained,
    waiting,
    work,
)
from analysis.findings.evidence import Evidence
from analysis.findings.finding import DOUBT, Finding, ordered
from analysis.frames.results import Results

Detector = Callable[[Evidence], Iterator[Finding]]
DETECTORS: tuple[Detector, ...] = (
    *(models.check, work.check, epochs.check, speedups.check, precision.check, steps.check, waiting.check),
    *(timing.check, backend.check, stages.check, trained.check, cliffs.check, noise.check, machine.check),
    *(provenance.check, absent.check),
)


def check(results: Results) -> list[Finding]:
    """What each of DETECTORS finds, the worst first. One that fails on what nobody foresaw is a finding itself."""
    if not (results.configurations.n > 0).any():
        return []
    evidence, salvage = Evidence(results), Salvage()
    found: list[Finding] = []
    for detector in DETECTORS:
        found += salvage.made(_name(detector), partial(_all, detector, evidence), [])
    return ordered((*found, *map(_unchecked, salvage.lost)))


def _all(detector: Detector, evidence: Evidence) -> list[Finding]:
    return list(detector(evidence))


def _name(detector: Detector) -> str:
    """`the check of cliffs`: each module looks for one kind of flaw."""
    return f"the check of {detector.__module__.rpartition('.')[2]}"


def _unchecked(why: str) -> Finding:
    text = f"{why}. What it looks for may be here unseen; please report it."
    return Finding("unchecked", "A check that failed", f"{text[0].upper()}{text[1:]}", DOUBT)
