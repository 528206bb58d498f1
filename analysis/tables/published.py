"""Published beside measured, as a table: ratios of ratios, and the flaws of each published one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.frames.baseline import known
from analysis.frames.results import Results
from analysis.frames.rows import as_rows
from analysis.published import side_by_side
from analysis.published.claims import published
from analysis.published.reference import FLAWS
from analysis.tables import notes
from analysis.tables.layout import Listing

HEADER = ("published ratio", "study", "published", "flaws", "measured here [95 %]", "here / published", "verdict")
VERDICTS = {
    side_by_side.AGREES: "agrees: the interval contains the published ratio",
    side_by_side.DIFFERS: "differs",
    side_by_side.NO_INTERVAL: "no interval: fewer than 3 repeats",
}


def listing(results: Results) -> list[Listing]:
    """One table; without rows, and with a note, where the study measured no published configuration."""
    claims = side_by_side.table(results)
    title = f"Published beside measured ({results.heading})"
    if claims.empty:
        return [Listing(title, HEADER, (), (_nothing(results),))]
    several = claims.duplicated("what", keep=False)
    rows = tuple(_row(row, named) for row, named in zip(as_rows(claims), several, strict=True))
    seen = sorted({flaw for flaws in claims.flaws for flaw in flaws}, key=lambda flaw: int(flaw[1:]))
    lines = [
        f"The published machines are not this one ({results.study.machine_text}): ratios are compared, not speeds. "
        "Published ratios are of single runs, without an interval.",
        f"Known flaws of the published measurements: {'; '.join(f'{flaw} {FLAWS[flaw]}' for flaw in seen)}.",
    ]
    return [Listing(title, HEADER, rows, (*lines, f"{notes.source(results)}."))]


def _row(row: Mapping[Any, Any], several: bool) -> tuple[str, ...]:
    what = f"{row['what']} ({row['series']})" if several else str(row["what"])
    interval = f" [{row['measured_low']:.2f}, {row['measured_high']:.2f}]" if known(row["measured_low"]) else ""
    equal = f"; at equal work {row['equal_work']:.2f}" if known(row["equal_work"]) else ""
    return (
        what, str(row["study"]), f"{row['published']:.2f}", ", ".join(row["flaws"]),
        f"{row['measured']:.2f}{interval}{equal}", f"{row['measured'] / row['published']:.2f}",
        VERDICTS[row["verdict"]].split(":")[0],
    )  # fmt: skip


def _nothing(results: Results) -> str:
    models = sorted({str(claim.of["model"]) for claim in published()})
    frameworks = sorted({str(claim.of["framework"]) for claim in published()})
    ours = ", ".join(results.models) or "nothing"
    return (
        f"No published ratio matches this study, which measured {ours}. Published are ratios of {', '.join(models)}, "
        f"by {', '.join(frameworks)}; a ratio needs both of its configurations, measured and comparable."
    )
