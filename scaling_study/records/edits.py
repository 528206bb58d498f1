"""What became of a study since it was last run into the same folder, in a few lines for a person. Pure.

A study may be edited between two runs. The window of `measure` is part of what a trial is: under another window it is
another trial, measured anew. How often it is repeated, and how long it may take, is not: records are reused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from scaling_study.records.manifest import Manifest
from scaling_study.trial import Window

WINDOW = ("warm", *(f.name for f in fields(Window)))
STUDY_KEYS = ("scaling", "baseline", "order_seed")


def changes(before: Manifest, now: Manifest, measured: Collection[str]) -> list[str]:
    """Lines, from the manifest of the last run and that of this one; `measured`: configurations that have records.

    Keys that `before` lacks, because an older version did not write them, are not compared.
    """
    changed = [
        f"{key} {getattr(before, key)} -> {getattr(now, key)}"
        for key in STUDY_KEYS
        if key in before.model_fields_set and getattr(before, key) != getattr(now, key)
    ]
    old, new = before.measure or {}, now.measure or {}
    keys = [key for key in new if key in old and old[key] != new[key]]
    changed += [f"{key} {_several(old[key])} -> {_several(new[key])}" for key in keys]
    lines = [f"The study has changed since its last run here: {', '.join(changed)}."] if changed else []
    if window := [key for key in keys if key in WINDOW]:
        lines.append(f"What was measured with other {', '.join(window)} is kept and measured again.")
    if "timeout_seconds" in keys:
        lines.append("Trials that timed out keep that status; --retry timeout runs them again.")
    if before.configurations is not None:
        known, wanted = set(before.configurations), set(now.configurations or ())
        added, gone = wanted - known, known - wanted
        if added:
            lines.append(f"{_count(added)} new since the last run.")
        if gone:
            kept = f": the records of {len(gone & set(measured))} of them are kept, but appear in no table"
            lines.append(f"{_count(gone)} no longer in the study{kept if gone & set(measured) else ''}.")
    return lines


def _several(values: Any) -> str:
    """`3`, or `3 and 5` where sweeps have their own."""
    return " and ".join(map(str, values)) if isinstance(values, list) else str(values)


def _count(configurations: Collection[str]) -> str:
    return "1 configuration is" if len(configurations) == 1 else f"{len(configurations)} configurations are"
