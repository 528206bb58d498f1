"""Configurations of which some repeats fail now: a speed of those that are left says nothing of them.

A repeat failed if it was run and is not ok. One that somebody or the machine's queue ended (cancelled), and one that
was never run (an implied oom), tell nothing of the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.compare.pairs import Pair, Row
from analysis.compare.verdicts import BROKEN, FAILING, SLOWER, Verdicts
from analysis.frames import outcomes
from analysis.frames.baseline import known
from analysis.frames.row_types import Outcome
from analysis.frames.rows import as_rows
from scaling_study.stats.intervals import FEWEST_REPEATS


class FailedTrial(Outcome):
    configuration: str
    repeat: int


NO_FAULT = ("ok", "cancelled", outcomes.IMPLIED)
Trials = Sequence[FailedTrial]  # of one configuration
MOST_REASONS = 2  # that are told of one configuration


def of(runs: pd.DataFrame) -> dict[str, Trials]:
    """`runs` (trials.COLUMNS) -> configuration -> its trials that failed, by repeat."""
    failed: dict[str, list[FailedTrial]] = {}
    for trial in as_rows(runs.loc[runs.status != "ok", list(FailedTrial.__annotations__)], FailedTrial):
        if outcomes.word(trial) not in NO_FAULT:
            failed.setdefault(str(trial["configuration"]), []).append(trial)
    return {name: sorted(trials, key=lambda failure: int(failure["repeat"])) for name, trials in failed.items()}


def judged(verdicts: Verdicts, pairs: Sequence[Pair], a: Mapping[str, Trials], b: Mapping[str, Trials]) -> Verdicts:
    """The same with the verdict FAILING for each pair whose runs fail in B as they did not in A, and with the reason.

    What is slower or fails parity stays that, and says of its failures too. Numbers stay as they are.
    """
    table = verdicts.table.copy()
    for index, pair in enumerate(pairs):
        ours, theirs = (side.get(str(row["configuration"]), ()) for row, side in ((pair.a, a), (pair.b, b)))
        if not _fails_now(pair, len(ours), len(theirs)):
            continue
        verdict, reason = table.verdict[index], table.reason[index]
        kept = verdict in (SLOWER, BROKEN)
        sentence = f"A: {counted(pair.a, ours)}, B: {counted(pair.b, theirs)}; {why(theirs)}"
        table.loc[index, "verdict"] = verdict if kept else FAILING
        table.loc[index, "reason"] = f"{reason}; {sentence}" if kept and known(reason) and reason else sentence
    return replace(verdicts, table=table)


def counted(row: Row, failed: Trials) -> str:
    """`1 of 3 ok`, of the repeats that tell anything."""
    return f"{row['n']} of {row['n'] + len(failed)} ok"


def why(failed: Trials) -> str:
    """`failed: rank 1 died`; `timeout: no step within 60 s and oom`: each once."""
    told = list(dict.fromkeys(_told(trial["status"], trial["reason"]) for trial in failed))
    more = f", {len(told) - MOST_REASONS} more" if len(told) > MOST_REASONS else ""
    return " and ".join(told[:MOST_REASONS]) + more


def _told(status: Any, reason: Any) -> str:
    return f"{status}: {reason}" if known(reason) and reason not in ("", status) else str(status)


def _fails_now(pair: Pair, failed_a: int, failed_b: int) -> bool:
    """Whether B has failures where A had none, or so many that it can no longer be tested as A could.

    One that ran in A or B only is a verdict of its own; one that failed in A too was so before.
    """
    if not (pair.a["n"] and pair.b["n"] and failed_b):
        return False
    return not failed_a or pair.a["n"] >= FEWEST_REPEATS > pair.b["n"]
