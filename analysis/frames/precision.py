"""What `target_interval` asks of each configuration: how wide the interval is, and how many repeats would narrow it.

    in rounds    of its ratio to the baseline, which what came over all at once leaves alone (launches.py)
    else         of its throughput

A baseline that others are held against in rounds has no interval of its own here: theirs hold its uncertainty.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from analysis.frames import launches
from analysis.frames.cache import once
from analysis.frames.results import Results
from analysis.frames.row_types import ConfigurationRow


class Width(NamedTuple):
    """Of one configuration that was measured; `half` is relative, nan where no interval is claimed."""

    row: ConfigurationRow
    half: float
    of_ratio: bool
    repeats_needed: int | None


@once
def widths(results: Results) -> list[Width]:
    """Of all configurations that were measured, in their order, but for such baselines."""
    by_id, target = {row["configuration"]: row for row in results.rows}, results.study.target_interval
    ratios: dict[str, Width] = {}
    for row in results.rows:
        base = by_id.get(row["baseline"] or "", row)
        if base is not row and not math.isnan(row["speedup"]) and (ratio := launches.ratio(row, base)):
            half, needed = ratio.relative_half_width, launches.needed(row, base, target)
            ratios[row["configuration"]] = Width(row, math.nan if half is None else half, True, needed)
    bases = {width.row["baseline"] for width in ratios.values()}
    return [
        ratios.get(name) or Width(row, row["relative_half_width"], False, row["repeats_needed"])
        for name, row in by_id.items()
        if row["n"] and name not in bases
    ]


def said_of(widths: list[Width]) -> str:
    """What these are intervals of, to stand after the word: ` of ratios to the baseline`; of throughputs: nothing."""
    of_ratio = [width.of_ratio for width in widths]
    if not any(of_ratio):
        return ""
    return " of ratios to the baseline" + ("" if all(of_ratio) else " (of throughputs where there is none)")
