"""Was the right thing timed, and often enough?

    F1  no warm-up: loader start, autotuning, the first negotiation are inside
    F2  one run each, and conclusions from single points
    F8  launch, wrapping and a checkpoint inside the time: of epochs, epochs.py says it

What is timed here never holds the launch (measure/clock.py), but a warm-up can be left out, or be too short. Steps may
also become faster or slower within the window: Student's test of the mean of log(1 + trend) over the repeats, which are
independent while the steps of one run are not; over all configurations at most 5 % of studies (Holm).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from analysis.findings import finding
from analysis.findings.evidence import FALSE_ALARMS, Evidence
from analysis.findings.finding import DOUBT, WRONG, Finding
from analysis.statistics.simultaneous_intervals import holm
from scaling_study.stats.intervals import FEWEST_REPEATS

STILL_WARMING = 2.0  # of the usual step: a first one as slow as this belongs to the warm-up
NOT_FINITE = "the loss is not finite"


def timing_flaws(evidence: Evidence) -> Iterator[Finding]:
    yield from _warm_up(evidence)
    yield from _trends(evidence)
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


def _trends(evidence: Evidence) -> Iterator[Finding]:
    """Configurations whose steps became faster, or slower, by more than the study's target, beyond chance."""
    runs = evidence.runs[(evidence.runs.status == "ok") & evidence.runs.step_trend.notna()]
    trends = {str(name): np.log1p(own.to_numpy(float)) for name, own in runs.groupby("configuration").step_trend}
    tested = [
        (row, trends[name]) for row in evidence.rows if len(trends.get(name := str(row["configuration"]), ())) > 2
    ]
    corrected = holm([_p_value(logs) for _, logs in tested])
    for rises, flaw, title, cause in (
        (False, "F1", "Steps that still become faster", "Something still warms up: raise warmup_steps"),
        (True, "slowing", "Steps that become slower", "A clock that throttles, or memory that fills, is in the mean"),
    ):
        moved = [
            (row, float(np.expm1(logs.mean())))
            for (row, logs), p in zip(tested, corrected, strict=True)
            if p <= FALSE_ALARMS and (logs.mean() > 0) == rises
        ]
        moved = [(row, change) for row, change in moved if abs(change) > evidence.results.study.target_interval]
        if moved:
            rows, most = [row for row, _ in moved], max((change for _, change in moved), key=abs)
            text = (
                f"From the first third of the timed steps to the last, steps become {'slower' if rises else 'faster'} "
                f"by up to {100 * abs(most):.1f} % in {finding.count(len(rows), 'configuration')} (Student's test over "
                f"repeats, Holm): {finding.named(rows, evidence.rows)}. {cause}, or make the window longer."
            )
            yield finding.about(flaw, title, text, DOUBT, rows)


def _p_value(logs: Any) -> float:
    """Two-sided, of a mean that is 0. logs: (n,), n > 2."""
    from scipy.special import stdtr

    error = logs.std(ddof=1) / np.sqrt(len(logs))
    if not error:
        return float(logs.mean() == 0.0)
    return float(2 * stdtr(len(logs) - 1, -abs(logs.mean()) / error))


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
