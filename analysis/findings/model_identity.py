"""Was the thing trained that its name says? Parameter counts, variants, lost weights, and what parity said.

F5   a table of "ResNet-50" that was ResNet-18: two models with one parameter count, or one model with two
F10  a variant beside its original, as if it were it
F15  weights that were in no stage of a pipeline, and so were never trained
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence, grouped
from analysis.findings.finding import DOUBT, MOST_NAMES, WRONG, Finding, Row
from analysis.frames import comparability
from analysis.frames.baseline import known, values_of
from analysis.frames.gates import NOT_CHECKED
from scaling_study.models import MODELS


def wrong_models(evidence: Evidence) -> Iterator[Finding]:
    yield from _parity(evidence)
    yield from _two_counts(evidence)
    yield from _one_count(evidence)
    yield from _variants(evidence)
    yield from _lost(evidence)


def _parity(evidence: Evidence) -> Iterator[Finding]:
    """What trains something else, and what nobody has looked at."""
    failed = [row for row in evidence.rows if comparability.failed(row)]
    for fault, rows in grouped(failed, lambda row: str(row["parity"])).items():
        faults = f"{' '.join(fault.split())} ({finding.named(rows)})"
        text = f"Does not train what one process would: {faults}. Compare its speed with nothing."
        yield finding.about("parity", "Parity failed", text, WRONG, rows)
    if unknown := [row for row in evidence.rows if row["parity"] == NOT_CHECKED]:
        text = (
            f"Nobody has shown that these train what one process would: {finding.named(unknown, evidence.rows)}. "
            "Run python -m scaling_study.parity --study FILE."
        )
        yield finding.about("parity", "Parity not checked", text, DOUBT, unknown)


def _two_counts(evidence: Evidence) -> Iterator[Finding]:
    """One model, several parameter counts. Those of a head that fits its data differ with the data, and with the size
    of frames; what a trial freezes is said by it."""
    counted = [row for row in evidence.rows if known(row["parameters"])]
    for (model, *_), rows in grouped(counted, _same_layers).items():
        counts = grouped(rows, lambda row: row["parameters"] or 0)
        if len(counts) > 1:
            each = "; ".join(f"{count:,} in {finding.named(of)}" for count, of in sorted(counts.items()))
            text = (
                f"Rows of {model} have unlike parameter counts, so they train unlike models: {each}. Find out which is "
                f"{model}, and compare the others with nothing."
            )
            yield finding.about("F5", "One model, several parameter counts", text, WRONG, rows)


def _same_layers(row: Row) -> tuple[object, ...]:
    """What decides how many of a model's parameters are trained."""
    return (row["model"], row["data_source"], *values_of(row, ("image_size", "image_width", "freeze")))


def _one_count(evidence: Evidence) -> Iterator[Finding]:
    """Several models, one parameter count."""
    counted = [row for row in evidence.rows if known(row["parameters"])]
    for count, rows in grouped(counted, lambda row: row["parameters"] or 0).items():
        pairs = itertools.combinations(sorted({str(row["model"]) for row in rows}), 2)
        names = list(dict.fromkeys(name for pair in pairs if not _related(*pair) for name in pair))
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            models = ", ".join(names[:MOST_NAMES]) if more else " and ".join(names)
            text = (
                f"{models}{more} have {count:,} parameters each: very probably they are one model under several names. "
                "Look at what their scripts build."
            )
            ours = [row for row in rows if row["model"] in names]
            yield finding.about("F5", "Several models, one parameter count", text, WRONG, ours)


def _related(a: str, b: str) -> bool:
    """Whether one is known to be a variant of the other."""
    return any(
        two in (MODELS[first].like, MODELS[first].smooth) for first, two in ((a, b), (b, a)) if first in MODELS
    )  # fmt: skip


def _variants(evidence: Evidence) -> Iterator[Finding]:
    models = grouped(evidence.rows, lambda row: str(row["model"]))
    for name, rows in models.items():
        about = MODELS.get(name)
        if about is not None and about.like in models:
            departs = about.departs.replace(" (F10)", "")
            text = f"{name} is a variant of {about.like} and not it: {departs}. Quote its speed for itself alone."
            yield finding.about("F10", "A variant beside its original", text, DOUBT, rows)


def _lost(evidence: Evidence) -> Iterator[Finding]:
    """The stages of each rank's pipeline, together, against the whole model."""
    stages = evidence.results.details.stages
    if stages.empty:
        return
    held = stages.drop_duplicates(["configuration", "stage"]).groupby("configuration").parameters.sum().to_dict()
    for row in evidence.rows:
        have = held.get(row["configuration"])
        if have is not None and known(row["parameters"]) and have < row["parameters"]:
            missing = int(row["parameters"]) - int(have)
            text = (
                f"{missing:,} of {row['parameters']:,} parameters are in no stage: they are never trained "
                f"({finding.named([row])}). Cut the model so that each is in one."
            )
            yield finding.about("F15", "Weights that no stage has", text, WRONG, [row])
