"""Speed-ups above the number of workers: there is a reason, and it is seldom a fast framework.

"Over 10 x on two GPUs" was unequal work (F9) and another model (F10). So what lies above the ideal beyond all noise is
said loudly. The intervals are simultaneous (Bonferroni over all speed-ups of the study): a study whose every speed-up
is ideal raises this alarm in at most 5 % of cases.
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence, simultaneous
from analysis.findings.finding import DOUBT, WRONG, Finding, Row
from analysis.frames.configurations import over
from scaling_study.stats.intervals import FEWEST_REPEATS

WITHOUT_INTERVAL = 1.25  # of the ideal: a single repeat must be so far above it to be suspected


def superlinear_speedups(evidence: Evidence) -> Iterator[Finding]:
    grown = [(row, base) for row, base in evidence.pairs if int(row["workers"]) > int(base["workers"])]
    sure = [(row, base) for row, base in grown if min(row["n"], base["n"]) >= FEWEST_REPEATS]
    above: list[tuple[float, Row, float]] = []  # how far, which, its lower bound
    for row, base in sure:
        low = over(row, base, simultaneous(len(sure))).low
        if low is not None and low > ideal(row, base):
            above.append((low / ideal(row, base), row, low))
    if above:
        _, worst, low = max(above, key=lambda case: case[0])
        rows = [row for _, row, _ in above]
        text = (
            f"Faster than the number of workers allows, beyond all noise: {finding.named(rows)}; most, "
            f"{worst['speedup']:.2f} x on {worst['workers']} workers, at least {low:.2f} x. Look for unequal work, "
            "another model or another precision first, then for caches that now hold what they did not."
        )
        yield finding.about("superlinear", "Superlinear speed-up", text, WRONG, rows)
    few = [(row, base) for row, base in grown if min(row["n"], base["n"]) < FEWEST_REPEATS]
    if single := [row for row, base in few if float(row["speedup"]) > WITHOUT_INTERVAL * ideal(row, base)]:
        text = (
            f"{finding.named(single)}: up to {max(float(row['speedup']) for row in single):.2f} x, above the number of "
            f"workers, from too few repeats for an interval. Repeat it {FEWEST_REPEATS} times before it is quoted."
        )
        yield finding.about("superlinear", "Superlinear speed-up, perhaps", text, DOUBT, single)


def ideal(row: Row, base: Row) -> float:
    """What twice, or n times, the workers could gain at most."""
    return int(row["workers"]) / int(base["workers"])
