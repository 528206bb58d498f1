"""Did rows that are compared do the same work? F9: 2,929 batches an epoch against 50, and "over 10x".

A throughput counts samples, so it cannot be fooled by shorter epochs; but whoever multiplies it by an epoch can, and
two rows whose epochs are unlike read unlike data.
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence, grouped
from analysis.findings.finding import WRONG, Finding, Row
from analysis.frames.baseline import known, value_of, values_of
from scaling_study.targets import ENDS


def unequal_work(evidence: Evidence) -> Iterator[Finding]:
    yield from _miscounted(evidence)
    yield from _unlike_epochs(evidence)
    yield from _unlike_data(evidence)


def _miscounted(evidence: Evidence) -> Iterator[Finding]:
    """Trials whose samples are not their steps times their global batch. A round of peers has what they gave it.

    A search for the largest batch has the steps of what it found, not of where it began.
    """
    trials = evidence.runs
    seen = trials[(trials.status == "ok") & trials.samples_seen.notna() & trials.steps.notna()]
    seen = seen[seen.achieved_over_target.isna() & seen["find"].isna()]
    wrong = seen[seen.samples_seen != seen.steps * seen.global_batch]
    if wrong.empty:
        return
    names, first = set(wrong.configuration), wrong.iloc[0]
    rows = [row for row in evidence.rows if row["configuration"] in names]
    text = (
        f"{finding.count(len(wrong), 'trial')} did not see steps x global batch samples: {first.trial} saw "
        f"{first.samples_seen:,} in {first.steps:,} steps of {first.global_batch:,} ({finding.named(rows)}). Compare "
        "them with nothing until their script counts rightly."
    )
    yield finding.about("F9", "Samples that do not add up", text, WRONG, rows)


def _unlike_epochs(evidence: Evidence) -> Iterator[Finding]:
    """A tail that fills no global batch is left out of an epoch: that much may differ."""
    for rows in grouped(evidence.rows, _same_data).values():
        sizes = {id(row): max(evidence.fact(row, "samples_per_epoch"), default=0) for row in rows}
        counted = sorted((row for row in rows if sizes[id(row)]), key=lambda row: sizes[id(row)])
        if not counted:
            continue
        least, most = counted[0], counted[-1]
        if sizes[id(most)] - sizes[id(least)] >= max(int(row["global_batch"]) for row in counted):
            text = (
                f"An epoch of {finding.named([least])} has {sizes[id(least)]:,} samples, one of "
                f"{finding.named([most])} {sizes[id(most)]:,}: they "
                "are not the same work. Compare samples per second, never seconds an epoch."
            )
            yield finding.about("F9", "Epochs of unlike work", text, WRONG, [least, most])


def _unlike_data(evidence: Evidence) -> Iterator[Finding]:
    """Real and generated data, or two data sets, in rows that are otherwise alike."""
    for model, rows in grouped(evidence.rows, lambda row: str(row["model"])).items():
        named = [row for row in rows if known(row["data_source"]) and row["data_source"]]
        sources = grouped(named, lambda row: str(row["data_source"]).split()[0].rstrip(":;,"))
        asked = {row["data"] for row in named}
        if len(sources) > 1 and len(asked) < len(sources):  # what the study itself compares is no accident
            each = "; ".join(f"{name} in {finding.named(of)}" for name, of in sorted(sources.items()))
            text = f"Rows of {model} read unlike data: {each}. Run them on one data set."
            yield finding.about("F9", "Unlike data", text, WRONG, named)


def _same_data(row: Row) -> tuple[object, ...]:
    """What decides how many samples an epoch has; one that is trained to a result leaves out what validates it."""
    keys = ("model", "data", "sequence_length", "image_size", "image_width", "train_validation")
    return (*values_of(row, keys), any(known(value_of(row, end)) for end in ENDS))
