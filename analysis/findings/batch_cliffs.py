"""Throughput that falls as the batch grows. F4: 254, 446, 451 samples/s at batch 1024, and no cause was given.

A larger batch does the same work for each sample with fewer launches and reductions, so it should not be slower. Where
it is, by 10 % or more beyond all noise, that is said, with the phase of the step in which the time went. The intervals
are simultaneous (Bonferroni over all steps from one batch to the next): a study in which nothing falls raises this
alarm in at most 5 % of cases, and in practice hardly ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from analysis.findings import finding
from analysis.findings.evidence import Evidence, grouped, simultaneous
from analysis.findings.finding import DOUBT, NOTE, Finding, Row
from analysis.frames.baseline import values_of
from analysis.frames.configurations import KEYS, over
from analysis.frames.over_ranks import phase_seconds
from analysis.frames.rounds import samples_of_step
from scaling_study.stats.intervals import FEWEST_REPEATS

CLIFF = 0.9  # of the throughput at the next smaller batch
WITHOUT_INTERVAL = 0.75  # likewise, where there are too few repeats for an interval
CAUSES = {  # phases that are a cause by themselves, and what to do about it
    "data": "Its loader does not keep up: give it more, or quote smaller batches.",
    "communication": "Communication grew out of proportion: look at its sizes of buckets or fusion.",
    "matchmaking": "Peers looked for each other longer than batches computed: give the round a larger target batch.",
}
UNKNOWN = "Look for its cause (--profile) before this row is quoted."
MOST = 0.5  # of the added time: so much of it in one phase is a place to look


def batch_cliffs(evidence: Evidence) -> Iterator[Finding]:
    steps = list(_steps(evidence.rows))
    sure = sum(min(small["n"], large["n"]) >= FEWEST_REPEATS for small, large in steps)
    for small, large in steps:
        if not (fell := _fell(small, large, simultaneous(sure))):
            continue
        cause, where = _cause(small, large)
        text = (
            f"{finding.named([large])}: {fell} of the samples per second at batch {small['batch']}, {where}. "
            f"{CAUSES.get(cause, UNKNOWN)}"
        )
        title = "A cliff along the batch size" + ("" if cause else ", without a cause")
        yield finding.about("F4", title, text, NOTE if cause else DOUBT, [small, large])


def _fell(small: Row, large: Row, confidence: float) -> str:
    """`29 % (at most 31 %)` where the larger batch stands at the foot of a cliff; empty where it does not."""
    change = over(large, small, confidence)
    if change.high is None:
        few = change.mean < WITHOUT_INTERVAL
        return f"{100 * change.mean:.0f} % (too few repeats for an interval)" if few else ""
    return f"{100 * change.mean:.0f} % (at most {100 * change.high:.0f} %)" if change.high < CLIFF else ""


def _steps(rows: list[Row]) -> Iterator[tuple[Row, Row]]:
    """(one batch size, the next larger one) of everything that is otherwise the same."""
    alike = [key for key in KEYS if key not in ("batch_per_worker", "global_batch")]
    series = grouped(rows, lambda row: values_of(row, alike))
    for ours in series.values():
        yield from pairwise(sorted(ours, key=lambda row: int(row["global_batch"])))


def _cause(small: Row, large: Row) -> tuple[str, str]:
    """(the phase that is a cause by itself, if one is; where the time went, in a clause)."""

    before, after = (
        {phase: seconds / samples_of_step(row) for phase, seconds in phase_seconds(row).items()}
        for row in (small, large)
    )
    added = {phase: after[phase] - before[phase] for phase in before if phase in after}
    whole = sum(added.values())
    if whole <= 0:
        return "", "and its phases do not show where the time went"
    phase = max(added, key=lambda name: added[name])
    share = added[phase] / whole
    if share < MOST:
        return "", "and the time went into several phases"
    return phase * (phase in CAUSES), f"and {100 * min(share, 1):.0f} % of the time added to a sample is in {phase}"
