"""Rounds of peers against what a rank says it saw: of a timed window, and of a training that was gone on from."""

from __future__ import annotations

from types import SimpleNamespace

from scaling_study.records import outcome
from scaling_study.records.store import AveragingRound

SHARE = 64  # samples of a rank in a round, if all give equally many


def problems(rounds: list[AveragingRound], seen: int, steps: int, untimed: str = "") -> list[str]:
    report = SimpleNamespace(
        rank=1,
        rounds=rounds,
        samples_seen=seen,
        step_seconds=[3.0] * steps,
        samples_per_step=SHARE,
        untimed_rounds_failure=untimed,
    )
    return list(outcome._of_rounds(report))  # type: ignore[arg-type]


def of(samples: int, failure: str = "") -> AveragingRound:
    return AveragingRound(samples, 2, 0.0, 0.0, 0.0, 0.0, failure)


def test_samples_are_those_of_the_windows_rounds() -> None:
    assert problems([of(64), of(80)], 144, 2) == []
    assert problems([of(64), of(80)], 128, 2) == ["rank 1 reports 128 samples in rounds of 144"]


def test_rounds_that_warmed_a_training_up_are_no_part_of_its_samples_but_of_its_failures() -> None:
    assert problems([of(999), of(64), of(80)], 144, 2) == []
    (failed,) = problems([of(999, "TimeoutError"), of(64), of(80)], 144, 2)
    assert failed == "rank 1: 1 of 3 rounds were not averaged over all peers; round 1: TimeoutError"


def test_a_round_that_was_not_timed_fails_the_trial_too() -> None:
    (failed,) = problems([of(64)], 64, 1, untimed="TimeoutError")
    assert failed == "rank 1: a round beside the timed ones failed: TimeoutError"
    (failed,) = problems([of(64, "a peer left")], 64, 1, untimed="TimeoutError")
    assert "round 1: a peer left" in failed


def test_rounds_before_a_training_was_gone_on_from_count_as_they_were_to_be() -> None:
    assert problems([of(80)], 2 * SHARE + 80, 3) == []
    assert problems([of(80)], 80, 3) == [f"rank 1 reports 80 samples in rounds of {2 * SHARE + 80}"]
