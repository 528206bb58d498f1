"""Was the right thing timed, and often enough?

    F1  no warm-up: loader start, autotuning, the first negotiation are inside
    F2  one run each, and conclusions from single points
    F8  launch, wrapping and a checkpoint inside the time: of epochs, epochs.py says it

What is timed here never holds the launch (measure/clock.py), but a warm-up can be left out, or be too short.
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence
from analysis.findings.finding import DOUBT, WRONG, Finding
from scaling_study.stats.intervals import FEWEST_REPEATS

STILL_WARMING = 2.0  # of the usual step: a first one as slow as this belongs to the warm-up
NOT_FINITE = "the loss is not finite"


def timing_flaws(evidence: Evidence) -> Iterator[Finding]:
    yield from _warm_up(evidence)
    few = [row for row in evidence.rows if row["n"] < FEWEST_REPEATS]
    if few:
        text = (
            f"{len(few)} of {finding.count(len(evidence.rows), 'configuration')} had fewer than {FEWEST_REPEATS} "
            f"repeats that are ok, and so no interval: {finding.named(few, evidence.rows)}. Conclude nothing from a "
            f"difference to them, and set repeats to {FEWEST_REPEATS} or more."
        )
        yield finding.about("F2", "Too few repeats", text, DOUBT, few)
    notes = evidence.results.details.notes
    lost = set(notes[notes.note == NOT_FINITE].configuration)
    if rows := [row for row in evidence.rows if row["configuration"] in lost]:
        text = (
            f"The loss is not finite, and arithmetic on such numbers may take another time: {finding.named(rows)}. "
            "Lower the learning rate, and run these again."
        )
        yield finding.about("loss", "A loss that is no number", text, DOUBT, rows)


def _warm_up(evidence: Evidence) -> Iterator[Finding]:
    cold = [row for row in evidence.rows if 0 in evidence.fact(row, "warmup_steps")]
    if cold:
        who = finding.named(cold, evidence.rows)
        text = (
            f"Timed from the first step on, with the costs of first steps and no warm-up: {who}. Set warmup_steps, and "
            "run these again."
        )
        yield finding.about("F1", "No warm-up", text, WRONG, cold)
    first = {row["configuration"]: min(evidence.fact(row, "first_step"), default=1.0) for row in evidence.rows}
    slow = [row for row in evidence.rows if first[row["configuration"]] > STILL_WARMING and row not in cold]
    if slow:
        worst = max(first[row["configuration"]] for row in slow)
        text = (
            f"In every repeat the first timed step takes more than {STILL_WARMING:g} x the usual one, up to "
            f"{worst:.1f} x: {finding.named(slow)}. Something still warms up: raise warmup_steps."
        )
        yield finding.about("F1", "A warm-up that is too short", text, DOUBT, slow)
