"""What became of a study since it was last run into the same folder, in a few lines for a person. Pure.

A study may be edited between two runs. The window of `measure` is part of what a trial is: under another window it is
another trial, measured anew. How often it is repeated, and how long it may take, is not: records are reused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from scaling_study.trial import Window

WINDOW = tuple(f.name for f in fields(Window))
STUDY_KEYS = ("scaling", "baseline", "order_seed")


def between(before: Mapping[str, Any], now: Mapping[str, Any], measured: Collection[str]) -> list[str]:
    """Lines, from the study.json of the last run and of this one; `measured`: configurations that have records.

    `before` was read from the disk: what is not of the right shape, or not there as in older results, says nothing.
    """
    changed = [f"{key} {before[key]} -> {now[key]}" for key in STUDY_KEYS if key in before and before[key] != now[key]]
    old, new = before.get("measure"), now["measure"]
    old = old if isinstance(old, dict) else {}
    keys = [key for key in new if key in old and old[key] != new[key]]
    changed += [f"{key} {_several(old[key])} -> {_several(new[key])}" for key in keys]
    lines = [f"The study was edited since it was last run here: {', '.join(changed)}."] if changed else []
    if window := [key for key in keys if key in WINDOW]:
        lines.append(f"What was measured with other {', '.join(window)} stays, and is measured anew.")
    if "timeout_seconds" in keys:
        lines.append("Trials that timed out stay so; --retry timeout runs them again.")
    known, wanted = before.get("configurations"), now["configurations"]
    if isinstance(known, list) and all(isinstance(name, str) for name in known):
        added, gone = set(wanted) - set(known), set(known) - set(wanted)
        if added:
            lines.append(f"{_count(added)} new since the last run.")
        if gone:
            kept = f": the records of {len(gone & set(measured))} of them stay, and stand in no table"
            lines.append(f"{_count(gone)} no longer in the study{kept if gone & set(measured) else ''}.")
    return lines


def _several(values: Any) -> str:
    """`3`, or `3 and 5` where sweeps have their own."""
    return " and ".join(map(str, values)) if isinstance(values, list) else str(values)


def _count(configurations: Collection[str]) -> str:
    return "1 configuration is" if len(configurations) == 1 else f"{len(configurations)} configurations are"
