"""The word for what came of a configuration. `oom` was measured, `oom (implied)` was not run: a smaller batch was."""

from __future__ import annotations

import pandas as pd

from analysis.frames.baseline import known
from analysis.frames.row_types import Outcome
from scaling_study.records import store

IMPLIED = "oom (implied)"


def word(row: Outcome) -> str:
    """Of a trial or a configuration: its status, implied ones told apart."""
    return IMPLIED if implied(row) else str(row["status"])


def implied(row: Outcome) -> bool:
    return store.implied(str(row["status"]), str(row["reason"]) if known(row["reason"]) else "")


def words(rows: pd.DataFrame) -> pd.Series[str]:
    """The same of each row."""
    pairs = zip(rows.status, rows.reason, strict=True)
    words = [word({"status": status, "reason": reason}) for status, reason in pairs]
    return pd.Series(words, index=rows.index, dtype="string")
