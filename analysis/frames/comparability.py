"""Whose speed may be set beside that of others, and the sentences that say whose may not.

†  failed parity: it trains something else, so its speed answers another question
‡  runs here in a way that holds it back (frameworks.py: not_comparable_on_cpu): its parity and memory still count
§  peers that step otherwise than DDP does (`updates`: delayed, local): another algorithm, whose speed is its own
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.frames.gates import NOT_CHECKED, PASSED
from analysis.frames.row_types import Judged
from analysis.frames.rows import as_rows
from scaling_study.frameworks import FRAMEWORKS

FAILED_SIGN, HERE_SIGN, UPDATES_SIGN = SIGNS = ("†", "‡", "§")
FAULTY = "NOT COMPARABLE: parity failed"
OTHERWISE = "not comparable with synchronous training"
UPDATES = {  # of peers: what each does instead
    "delayed": "a peer steps by the gradients of the round before, while it computes those of the next",
    "local": "a peer steps by its own gradients after each batch, and weights are averaged in place of gradients",
}
MOST_NAMES = 4


def why_not(row: Mapping[Any, Any]) -> str:
    """Why the speed of a configuration is not to be compared; empty if it may be. `row` has its keys and `parity`."""
    if failed({"parity": row["parity"], "not_comparable": ""}):
        return f"{FAULTY}: {' '.join(str(row['parity']).split())}"
    if own := own_algorithm(row):
        return f"{OTHERWISE}: {UPDATES[own]} (updates={own}; its parity gate is one of synchronous rounds)"
    table = FRAMEWORKS.get(str(row["framework"]))
    here = table.not_comparable_on_cpu if table is not None and row["device"] == "cpu" else ""
    return f"speed not comparable: {here}" if here else ""


def own_algorithm(row: Mapping[Any, Any]) -> str:
    """`delayed` or `local` of peers that step so: set beside nothing but their like. Empty of all others."""
    how = str(row.get("updates"))
    return how if how in UPDATES else ""


def failed(row: Judged) -> bool:
    """Whether it failed parity."""
    return row["parity"] not in (PASSED, NOT_CHECKED)


def sign(row: Judged) -> str:
    """What stands beside its numbers and its name."""
    if not row["not_comparable"]:
        return ""
    return FAILED_SIGN if failed(row) else UPDATES_SIGN if row["not_comparable"].startswith(OTHERWISE) else HERE_SIGN


def sign_of_work(row: Judged) -> str:
    """The same beside bytes: those count wherever and however fast it runs, but not of what trains something else."""
    return FAILED_SIGN if sign(row) == FAILED_SIGN else ""


def sentences(rows: pd.DataFrame, signs: Sequence[str] = SIGNS) -> list[str]:
    """One line for each reason: `† NOT COMPARABLE: parity failed: loss of every step: ... (deepspeed_zero).`"""
    marked = rows[["framework", "series", "not_comparable", "parity"]][rows.not_comparable.fillna("") != ""]
    lines = []
    for (why, at), group in marked.groupby([marked.not_comparable, _signs(marked)], sort=False):
        if str(at) in signs:
            lines.append(f"{at} {why} ({names(group, rows)}).")
    return lines


def names(group: pd.DataFrame, rows: pd.DataFrame) -> str:
    """A framework by its name where all of its rows are in the group, else series by series."""
    names = []
    for framework, ours in group.groupby("framework", sort=False):
        whole = len(ours) == (rows.framework == framework).sum()
        names += [str(framework)] if whole else [str(name) for name in ours.series.unique()]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return "; ".join(names[:MOST_NAMES]) + more


def checked(rows: pd.DataFrame) -> list[str]:
    """What parity says of the measured rows that did not fail it: at most two short lines."""
    measured = rows[["framework", "series", "parity", "parity_gates"]][rows.n > 0]
    good, unknown = measured[measured.parity == PASSED], measured[measured.parity == NOT_CHECKED]
    if measured.empty:
        return []
    lines = []
    if len(good):
        count = len({gate for gates in good.parity_gates for gate in str(gates).split(";")})
        others = names(good, measured) if len(unknown) else "all others"
        who = "all frameworks" if len(good) == len(measured) else others
        lines.append(f"Parity: {who} passed ({count} gate{'s' * (count != 1)}).")
    if len(unknown):
        lines.append(
            "Parity: not checked" + ("." if len(unknown) == len(measured) else f": {names(unknown, measured)}.")
        )
    return lines


def _signs(rows: pd.DataFrame) -> pd.Series[Any]:
    return pd.Series(
        [sign(row) for row in as_rows(rows[["not_comparable", "parity"]], Judged)], index=rows.index, dtype=object
    )


def of_gates(gates: pd.DataFrame) -> list[str]:
    """The verdicts of gates (trials.COLUMNS) in words, where there is no table yet to stand under."""
    bad = gates[~gates.parity.isin((PASSED, NOT_CHECKED))]
    lines = [f"Parity: {(gates.parity == PASSED).sum()} of {len(gates)} gates passed."] if len(gates) else []
    return lines + [f"{FAILED_SIGN} {FAULTY}: {row.parity} ({row.trial})." for row in bad.itertuples()]
