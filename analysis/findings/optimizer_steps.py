"""Another batch at the same learning rate is another training: fewer optimiser steps, each no longer.

    F13  batch 128 a GPU: 391 steps an epoch on one, 98 on four; of measured epochs, epochs.py says it too
    F19  the global batch changes with the number of GPUs, the learning rate does not        F26  likewise, doubled
    F23  strategies compared by accuracy at 1280 and 8192 samples a step, at one rate

For a speed it does not matter, so of timed runs it is a note. Of runs that were trained to a result it decides it.
There the reverse is found too: a rate that was multiplied by the workers although the global batch is the same. A
rule that scales the rate with the global batch is the remedy: other batches then have other rates, the same batch one.
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence, grouped
from analysis.findings.finding import DOUBT, NOTE, WRONG, Finding, Row
from analysis.frames.baseline import known, values_of
from analysis.to_target.pairs import RECIPE

TIMED = "Samples per second do not depend on it; compare no losses and no accuracies."
TRAINED = "Scale the rate with the batch, or hold the global batch."


def unequal_steps(evidence: Evidence) -> Iterator[Finding]:
    rated = [(row, set(evidence.fact(row, "learning_rate"))) for row in evidence.rows]
    rows = [(row, rates.pop()) for row, rates in rated if len(rates) == 1]
    yield from _with_workers(evidence, rows)
    yield from _other_rates(evidence, rows)
    yield from _between_strategies(evidence, rows)


def _with_workers(evidence: Evidence, rated: list[tuple[Row, float]]) -> Iterator[Finding]:
    """One model, one batch a worker, one rate, several global batches."""
    rates = {row["configuration"]: rate for row, rate in rated}
    rows = [row for row, _ in rated]
    for (model, _), ours in grouped(rows, lambda row: (row["model"], rates[row["configuration"]])).items():
        by_batch = grouped(ours, lambda row: row["batch_per_worker"]).values()
        grew = [of for of in by_batch if len({row["global_batch"] for row in of}) > 1]
        if not grew:
            continue
        sizes = sorted({int(row["global_batch"]) for row in grew[0]})
        batches, doubled = " and ".join(f"{batch:,}" for batch in sizes), sizes == [sizes[0], 2 * sizes[0]]
        rate, concerned = rates[ours[0]["configuration"]], [row for of in grew for row in of]
        trained = _trained(evidence, concerned)
        flaw, severity = ("F26" if doubled else "F19", WRONG) if trained else ("F19", NOTE)
        if any(known(row["epochs"]) for row in concerned):
            flaw, severity = ("F13", DOUBT if severity == NOTE else severity)
        text = (
            f"{model} has global batches of {batches} samples at one learning rate ({rate:g}): so many fewer optimiser "
            f"steps in an epoch are another training ({finding.named(concerned)}). "
        )
        text += TRAINED if trained else TIMED
        yield finding.about(flaw, "More samples a step, the same learning rate", text, severity, concerned)


def _other_rates(evidence: Evidence, rated: list[tuple[Row, float]]) -> Iterator[Finding]:
    """Of runs whose results are compared: one recipe and global batch, and unlike rates all the same."""
    rates = {row["configuration"]: rate for row, rate in rated}
    rows = _trained(evidence, [row for row, _ in rated])
    for ours in grouped(rows, lambda row: tuple(map(str, values_of(row, RECIPE)))).values():
        by_rate = grouped(ours, lambda row: f"{rates[row['configuration']]:.6g}")
        if len(by_rate) > 1:
            each = "; ".join(f"{rate} in {finding.named(of)}" for rate, of in by_rate.items())
            text = (
                f"One recipe at one global batch was trained at unlike learning rates: {each}. What multiplies the "
                "rate by workers trains something else; take it out."
            )
            yield finding.about("F19", "The learning rate changes with the workers", text, WRONG, ours)


def _between_strategies(evidence: Evidence, rated: list[tuple[Row, float]]) -> Iterator[Finding]:
    """Of runs whose results are compared: frameworks with no global batch in common."""
    rates = {row["configuration"]: rate for row, rate in rated}
    rows = _trained(evidence, [row for row, _ in rated])
    for (model, rate), ours in grouped(rows, lambda row: (row["model"], rates[row["configuration"]])).items():
        batches = {
            str(name): {int(row["global_batch"]) for row in of}
            for name, of in grouped(ours, lambda row: row["framework"]).items()
        }
        if len(batches) > 1 and not set.intersection(*batches.values()):
            each = "; ".join(f"{name} {', '.join(map(str, sorted(sizes)))}" for name, sizes in sorted(batches.items()))
            text = (
                f"Results of {model} at one learning rate ({rate:g}) and unlike global batches ({each}) compare "
                "numbers of steps, not strategies. Train all at one global batch."
            )
            yield finding.about("F23", "Strategies with unlike optimiser steps", text, WRONG, ours)


def _trained(evidence: Evidence, rows: list[Row]) -> list[Row]:
    """Those that were trained to a result."""
    return [row for row in rows if any(evidence.fact(row, "training"))]
