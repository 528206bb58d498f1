"""Rounds of decentralised training (scaling_study/measure/rounds.py): what those of each run came to, a row a run.

    samples of all peers over the target, rounds that were not averaged over all of them, seconds of a round

A round is a step: the n-th round of every rank is the same one. Seconds are means over ranks and rounds, since each
peer watches its own; those of an averaging that was still under way (peers: 0) when the run ended are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.frames.rows import typed
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.quoting import printable
from scaling_study.records.store import Record

SECONDS = tuple(
    f"{part}_{what}" for part in ("matchmaking", "averaging") for what in ("seconds", "blocked_seconds")
)  # of a peer's round, as it says them
NUMBERS = ("achieved_over_target", "achieved_most", "round_seconds", *SECONDS, "weights_share")
COLUMNS = ("configuration", "repeat", "ok", "rounds", "failed", "local", "peers", "failure", *NUMBERS)
Row = tuple[Any, ...]


def of_peers(framework: str) -> bool:
    """Whether its step is a round of peers, which ends once they together have a target batch."""
    table = FRAMEWORKS.get(framework)
    return table is not None and table.has_rounds


def samples_of_step(row: Mapping[str, Any]) -> float:
    """That a configuration's workers take in one step: its global batch, or what a round really had."""
    achieved = row.get("achieved_over_target")
    return float(row["global_batch"]) * (1.0 if achieved is None or pd.isna(achieved) else float(achieved))


def achieved(record: Record) -> float | None:
    """Samples of all peers in a round over its target, mean of the rounds; None where there are none."""
    shares = _shares(record)
    return sum(shares) / len(shares) if shares else None


def failed(record: Record) -> int | None:
    """Rounds that some peer did not average with all others; None where there are no rounds."""
    return sum(bool(_failure(each)) for each in _whole(record)) if _has_rounds(record) else None


def rows(record: Record) -> list[Row]:
    """One of COLUMNS for a run that has rounds. `local`: rounds that some peer applied with its own gradients alone;
    `failure`: of the first that failed; `round_seconds`: of a timed round on the slowest rank; `weights_share`: of the
    rounds, those after which weights were averaged too, which older records do not say."""
    whole = _whole(record)
    if not whole:
        return []
    slowest = max(record.ranks, key=lambda rank: rank.window_seconds)
    every = [each for rank in record.ranks for each in rank.rounds]
    over = [each for each in every if int(each["peers"])]
    failures = [why for each in whole if (why := _failure(each))]
    shares = _shares(record)
    return [
        (
            *(printable(record.configuration), int(record.trial["repeat"]), record.status == "ok"),
            *(len(whole), len(failures), sum(any(int(one["peers"]) == 1 for one in each) for each in whole)),
            *(min((int(each["peers"]) for each in over), default=0), printable(failures[0]) if failures else ""),
            *(sum(shares) / len(shares), max(shares)),
            slowest.window_seconds / len(slowest.step_seconds) if slowest.step_seconds else None,
            *(sum(_seconds(each, name) for each in over) / len(over) if over else None for name in SECONDS),
            _weights_share(every),
        )
    ]


def _seconds(each: Mapping[str, Any], name: str) -> float:
    """What blocked a round's averaging is also that of the weights before it, for which its update waited."""
    more = each.get("weights_blocked_seconds", 0.0) if name == "averaging_blocked_seconds" else 0.0
    return float(each[name]) + float(more)


def _weights_share(every: Sequence[Mapping[str, Any]]) -> float | None:
    known = [each["weights_peers"] is not None for each in every if "weights_peers" in each]  # 0: under way
    return sum(known) / len(known) if known else None


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """COLUMNS, with types that do not depend on which rows there are."""
    kinds = dict.fromkeys(COLUMNS) | dict.fromkeys(("repeat", "rounds", "failed", "local", "peers"), "int64")
    kinds |= {"ok": "bool"} | dict.fromkeys(NUMBERS, "float64")
    return typed(rows, kinds)


def _has_rounds(record: Record) -> bool:
    return any(rank.rounds for rank in record.ranks)


def _whole(record: Record) -> list[Sequence[Mapping[str, Any]]]:
    """Round by round what each rank says of it, as far as all say something."""
    return list(zip(*(rank.rounds for rank in record.ranks), strict=False)) if _has_rounds(record) else []


def _shares(record: Record) -> list[float]:
    """Of each round: samples of all peers over the target. Raises ValueError where there is no target."""
    if not (whole := _whole(record)):
        return []
    if (target := int(record.trial["global_batch"])) < 1:
        raise ValueError(f"global_batch is {target}")
    return [sum(int(one["samples"]) for one in each) / target for each in whole]


def _failure(each: Sequence[Mapping[str, Any]]) -> str:
    """Why not all peers took part, by the first that says it."""
    return next((str(one["failure"]) for one in each if one["failure"]), "")
