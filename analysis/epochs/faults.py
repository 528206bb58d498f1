"""What makes an epoch say less than it seems to: a mark for the row, and a sentence that says it loudly.

A row here is one of table.COLUMNS, or the mapping that becomes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.frames.baseline import known
from analysis.frames.row_types import ComparedEpoch
from analysis.text.number_formats import number
from scaling_study.models import MODELS

UNEQUAL_WORK, OTHER_MODEL, OTHER_STEPS, LOADING, UNSTEADY = "F9", "F10", "F13", "F17", "≠"
STEADY = 0.05  # of running seconds: beyond it the two ways of measuring disagree
MOST_LOADING = 0.1  # of running seconds
Row = ComparedEpoch
Fault = tuple[str, str]  # mark, sentence


def of(row: Row, rows: Sequence[Row]) -> list[Fault]:
    """The faults of one row; `rows` are all, its baseline among them."""
    faults = []
    reference = next((other for other in rows if other["configuration"] == row["epoch_baseline"]), None)
    if reference is not None and reference["configuration"] != row["configuration"]:
        faults += _against(row, reference)
    if row["running_seconds"] and (share := row["data_seconds"] / row["running_seconds"]) > MOST_LOADING:
        faults.append((LOADING, f"{100 * share:.0f} % of the epoch went into waiting for data, not training (F28)"))
    if abs(row["unsteady"]) > STEADY:
        lasted, steady = number(row["running_seconds"]), number(row["steady_seconds"])
        by = f"its {row['steps']:,} steps {steady} s by the steps' own clock: {100 * row['unsteady']:+.0f} %"
        faults.append((UNSTEADY, f"the epoch lasted {lasted} s, and {by}"))
    return faults


def _against(row: Row, reference: Row) -> list[Fault]:
    """What differs between two epochs beside who ran them."""
    faults = []
    # A tail that fills no global batch is left out of an epoch: that much may differ.
    if abs(row["samples"] - reference["samples"]) >= max(row["global_batch"], reference["global_batch"]):
        ratios = f"the epoch ratio of {factor(row['epoch_ratio'])} is {factor(row['equal_work_ratio'])} at equal work"
        trained = f"trained {row['samples']:,} samples an epoch against {reference['samples']:,}"
        faults.append((UNEQUAL_WORK, f"{trained}: {ratios}"))
    if row["model"] != reference["model"]:
        departs = MODELS[str(row["model"])].departs.replace(f" ({OTHER_MODEL})", "")
        faults.append((OTHER_MODEL, f"compared with {reference['model']}, and is not it: {departs}"))
    if row["global_batch"] != reference["global_batch"]:
        faults.append((OTHER_STEPS, _steps(row, reference)))
    return faults


def _steps(row: Row, reference: Row) -> str:
    """Both readings of a batch that grew with the workers: the same for each of them, or the same for all together."""
    rates = row["used_learning_rate"], reference["used_learning_rate"]
    at = ""
    if all(map(known, rates)):
        at = f" and a learning rate of {rates[0]:g} against {rates[1]:g}"
        at = f" at one learning rate ({rates[0]:g})" if rates[0] == rates[1] else at
    same = row.get("same_batch_ratio")
    other = f"it is {factor(same)}" if known(same) else "no baseline was run"
    return (
        f"{row['steps']:,} optimiser steps an epoch against {reference['steps']:,}, with a global batch of "
        f"{row['global_batch']} against {reference['global_batch']}{at}: another training. The epoch ratio of "
        f"{factor(row['epoch_ratio'])} is at the same batch per worker; at the same global batch {other}"
    )


def factor(value: Any) -> str:
    """`12.0x`, `0.21x`; empty where unknown."""
    return f"{number(value)}x" if known(value) else ""
