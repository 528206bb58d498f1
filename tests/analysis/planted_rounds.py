"""Results folders of peers whose rounds are known: what each had, waited for, and which ones failed.

plant_rounds(tmp_path, [Peers(HIVEMIND, achieved=(1.0, 1.25))], [Phased(Planted("single"), STEP)])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from planted import Planted, record
from planted_phases import Phased, phases_of, plant_phased

from scaling_study.records import outcome
from scaling_study.records.schema import AveragingRound, RankReport, Record
from scaling_study.records.store import write_record
from scaling_study.trial import Trial

TARGET = 512
KEYS = (("target_batch_size", TARGET), ("matchmaking_seconds", 2.0))
HIVEMIND = Planted("hivemind", batch_per_worker=32, workers=2, allreduce="fp32", steps=8, keys=KEYS)
ROUND = {
    "data": 0.01,
    "forward": 0.6,
    "backward": 1.1,
    "matchmaking": 0.5,
    "averaging": 0.1,
    "optimizer": 0.09,
}  # 2.4 s


@dataclass(frozen=True)
class Peers:
    """`achieved`: samples of all peers over the target, of round after round, in turn. `failures`: number of a round of
    rank 0, from 0 -> (why, peers that took part)."""

    one: Planted = HIVEMIND
    achieved: Sequence[float] = (1.0, 1.125)
    phases: Mapping[str, float] = field(default_factory=lambda: ROUND)
    failures: Mapping[int, tuple[str, int]] = field(default_factory=dict)


def plant_rounds(folder: Path, peers: Iterable[Peers], others: Iterable[Phased] = (), **about: Any) -> Path:
    """Write folder/study.json and every record; a trial in which a round failed is what validation makes of it."""
    plant_phased(folder, others, **about)
    for each in peers:
        for repeat in range(1, each.one.repeats + 1):
            made = of_peers(each, each.one.trial(repeat), str(about.get("study", "planted")))
            write_record(folder / "trials" / made.id, made)
    return folder


def of_peers(each: Peers, trial: Trial, study: str = "planted") -> Record:
    """The record of one repeat, whose rounds all take as long as the phases say; repeats are 1 % apart."""
    seconds = sum(each.phases.values()) * (1 + 0.01 * trial.repeat)
    made = record(each.one, trial, trial.global_batch / seconds, study, np.random.default_rng(0))
    phased = Phased(each.one, each.phases)
    ranks = [
        replace(
            with_rounds(report, trial, each), step_seconds=[seconds] * each.one.steps, phases=phases_of(phased, rank)
        )
        for rank, report in enumerate(made.ranks)
    ]
    wrong = outcome.first_problem(trial, ranks)
    return replace(made, ranks=ranks, **({"status": "failed", "reason": wrong} if wrong else {}))


def with_rounds(report: RankReport, trial: Trial, each: Peers) -> RankReport:
    """A rank that gave its share of every round."""
    rounds = []
    for number in range(each.one.steps):
        samples = round(each.achieved[number % len(each.achieved)] * trial.global_batch / trial.workers)
        why, peers = each.failures.get(number, ("", trial.workers)) if report.rank == 0 else ("", trial.workers)
        rounds.append(AveragingRound(
            samples=samples, peers=peers, failure=why, matchmaking_seconds=2.0 + 0.1 * report.rank,
            averaging_seconds=0.15, matchmaking_blocked_seconds=each.phases.get("matchmaking", 0.0),
            averaging_blocked_seconds=each.phases.get("averaging", 0.0) / 2,
            weights_blocked_seconds=each.phases.get("averaging", 0.0) / 2, weights_seconds=0.2,
            weights_peers=trial.workers if number % 4 else None, sent_bytes=1_000_000 * (1 + number % 2),
        ))  # fmt: skip
    seen = sum(each.samples for each in rounds)
    return replace(report, rounds=rounds, samples_seen=seen, samples_per_step=trial.global_batch // trial.workers)
