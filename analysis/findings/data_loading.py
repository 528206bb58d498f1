"""Is a loader measured instead of a framework, or unlike shares of the machine?

F6   one loader process capped every large batch at 4,800 samples/s
F17  the share of data-loading grew from row to row, and CPU cores were 4 here and 16 there
F28  a baseline that waited for data most of its time, and so made "1.93x"
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from analysis.findings import finding
from analysis.findings.evidence import Evidence, grouped
from analysis.findings.finding import DOUBT, WRONG, Finding, Row
from analysis.frames.over_ranks import phase_seconds
from scaling_study.frameworks import FRAMEWORKS

MOST = 0.1  # of a step spent waiting for its batch; a hair more is still that


def loader_limits(evidence: Evidence) -> Iterator[Finding]:
    yield from _loader_bound(evidence)
    yield from _unlike_cores(evidence)


def share(evidence: Evidence, row: Row) -> float | None:
    """Of an instrumented step, or of trainings to a result, what went into getting batches; None where that is not
    known."""
    seconds = phase_seconds(row)
    whole = sum(seconds.values())
    if "data" in seconds and whole > 0:
        return seconds["data"] / whole
    trained = [rank.data_share for ranks in evidence.fact(row, "training") for rank in ranks]
    known = [at for at in trained if at is not None]
    return fmean(known) if known else None


def _loader_bound(evidence: Evidence) -> Iterator[Finding]:
    shares = ((str(row["configuration"]), share(evidence, row)) for row in evidence.rows)
    slow = {name: at for name, at in shares if at is not None and at > MOST + 1e-9}
    bound = [row for row in evidence.rows if row["configuration"] in slow]
    held = [(row, base) for row, base in evidence.pairs if base["configuration"] in slow]
    for base, pairs in ((of[0][1], of) for of in _by_baseline(held)):
        at, rows = slow[base["configuration"]], [row for row, _ in pairs]
        text = (
            f"The baseline ({finding.named([base])}) waits {100 * at:.0f} % of a step for its batch, so speed-ups over "
            f"it are in part those of its loader ({finding.named(rows)}). Mend its loader before they are quoted."
        )
        yield finding.about("F28", "A baseline that waits for data", text, DOUBT, [base, *rows])
    if bound:
        worst = max(bound, key=lambda row: slow[row["configuration"]])
        text = (
            f"More than {100 * MOST:.0f} % of a step goes into waiting for its batch in "
            f"{finding.count(len(bound), 'configuration')}: {finding.named(bound)}; most, "
            f"{100 * slow[worst['configuration']]:.0f} %, in {finding.named([worst])}. A loader is measured there as "
            "much as a framework: give it more workers, or hold the data in memory."
        )
        yield finding.about("F6", "A loader is measured", text, DOUBT, bound)


def _by_baseline(pairs: list[tuple[Row, Row]]) -> list[list[tuple[Row, Row]]]:
    groups: dict[str, list[tuple[Row, Row]]] = {}
    for row, base in pairs:
        groups.setdefault(str(base["configuration"]), []).append((row, base))
    return list(groups.values())


def _unlike_cores(evidence: Evidence) -> Iterator[Finding]:
    """Cores and threads that each worker really had, which must be the same wherever speeds are compared."""
    one_each = [row for row in evidence.rows if not _one_process(row)]
    for what in ("cores", "threads"):
        for (device, _), rows in grouped(one_each, lambda row: (row["device"], row["model"])).items():
            had = {id(row): {n for least, most in evidence.fact(row, what) for n in (least, most)} for row in rows}
            counts = set().union(*had.values())
            if len(counts) < 2:
                continue
            least, most = (next(row for row in rows if n in had[id(row)]) for n in (min(counts), max(counts)))
            text = (
                f"Workers had unlike CPU {what} on {device}, so their speeds are not those of their frameworks alone: "
                f"{min(counts) or 'no pinned ones'} in {finding.named([least])}, {max(counts)} in "
                f"{finding.named([most])}. Give all the same share, and run these again."
            )
            yield finding.about("F17", f"Unlike CPU {what}", text, WRONG, [least, most])


def _one_process(row: Row) -> bool:
    """Whether one process drives all workers, and so has all their cores."""
    table = FRAMEWORKS.get(str(row["framework"]))
    return table is not None and table.one_process
