"""All detectors, in the order in which a reader wants to hear of what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from analysis.execution.lost_parts import Salvage
from analysis.findings import (
    backend,
    batch_cliffs,
    data_loading,
    disturbances,
    epochs,
    maps,
    missing_results,
    model_identity,
    noise,
    optimizer_steps,
    pipeline_cuts,
    precision,
    provenance,
    skipped_steps,
    superlinear,
    timing,
    training_flaws,
    unequal_work,
)
from analysis.findings.evidence import Evidence
from analysis.findings.finding import DOUBT, Finding, ordered
from analysis.frames.results import Results

Detector = Callable[[Evidence], Iterator[Finding]]
DETECTORS: tuple[Detector, ...] = (
    model_identity.wrong_models,
    unequal_work.unequal_work,
    epochs.epoch_faults,
    superlinear.superlinear_speedups,
    precision.mixed_precisions,
    optimizer_steps.unequal_steps,
    data_loading.loader_limits,
    timing.timing_flaws,
    skipped_steps.skipped_steps,
    backend.slow_backends,
    pipeline_cuts.unbalanced_cuts,
    training_flaws.training_flaws,
    maps.maps_of_something_else,
    batch_cliffs.batch_cliffs,
    noise.noise_and_drift,
    disturbances.disturbances,
    provenance.mixed_versions,
    missing_results.missing_results,
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
