"""What a pipeline's cut allows. F16: shares of 24, 21, 48 and 6.5 % cap every schedule at 2.08 x. Nobody said so."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.findings import finding
from analysis.findings.evidence import Evidence, grouped
from analysis.findings.finding import DOUBT, Finding
from analysis.frames.baseline import known
from analysis.frames.rows import as_rows
from analysis.pipeline import shape
from analysis.pipeline.frame import parted, table
from analysis.text.number_formats import percents

BALANCED = 0.9  # of the ideal: as the table of pipelines has it


def unbalanced_cuts(evidence: Evidence) -> Iterator[Finding]:
    """One for each cut of a model, with the cap of any schedule and the least cap of those that were run."""
    if not any(shape.is_cut(row) for row in evidence.rows):
        return
    by_id = {row["configuration"]: row for row in evidence.rows}
    capped = [row for row in as_rows(table(evidence.results)) if known(row["most_speedup"])]
    held = [row for row in capped if row["most_speedup"] < BALANCED * int(row["stages"])]
    for rows in grouped(held, lambda row: tuple(row[key] for key in ("model", "stages", "layers"))).values():
        worst = min(rows, key=lambda row: row["most_speedup"])
        caps = [row["cap"] for row in rows if known(row["cap"])]
        ours = [by_id[row["configuration"]] for row in rows if row["configuration"] in by_id]
        least = f"; with its schedule and micro-batches at most {min(caps):.2f} x" if caps else ""
        text = (
            f"The stages take {percents(parted(worst['time_shares']))} of the time: on {worst['stages']} workers no "
            f"schedule is faster than {worst['most_speedup']:.2f} x one process{least} ({finding.named(ours)}). Cut it "
            "evenly (stage_cut), or state this cap beside the speed-up."
        )
        yield finding.about("F16", "A cut that caps the speed-up", text, DOUBT, ours)
