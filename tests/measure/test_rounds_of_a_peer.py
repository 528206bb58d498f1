"""Rounds of one peer: counted in order, and whole only where all peers took part."""

from __future__ import annotations

import pytest

from scaling_study.measure.training import AveragingRounds


def rounds_of(*samples: int, peers: int = 2) -> AveragingRounds:
    rounds = AveragingRounds(peers)
    for count in samples:
        rounds.current.samples, rounds.current.peers = count, peers
        rounds.end()
    return rounds


def test_samples_are_counted_once() -> None:
    rounds = rounds_of(64, 96)
    assert (rounds.uncounted(), rounds.uncounted()) == (160, 0)
    rounds.current.samples = 32
    assert rounds.uncounted() == 0  # the round is not over
    rounds.end()
    assert rounds.uncounted() == 32


def test_a_round_without_everybody_says_why() -> None:
    rounds = AveragingRounds(3)
    for peers, failure in ((3, ""), (2, ""), (1, "TimeoutError"), (0, "")):
        rounds.current.peers, rounds.current.failure = peers, failure
        rounds.end()
    failures = [each.failure for each in rounds.since(0)]
    assert failures == ["", "2 of 3 peers took part", "TimeoutError", "nothing was averaged with anybody"]
    assert [each.failure for each in rounds.since(-2)] == failures[-2:]


@pytest.mark.parametrize(("late", "failed"), [(0, [True, True]), (1, [True, False]), (None, [False, False])])
def test_only_what_is_late_may_still_be_averaged(late: int | None, failed: list[bool]) -> None:
    """Synchronous updates wait for it, of delayed ones the last may be under way, local ones need none."""
    rounds = AveragingRounds(2, late)
    for _ in failed:
        rounds.end()
    assert [bool(each.failure) for each in rounds.since(0)] == failed


@pytest.mark.parametrize(
    ("peers", "failures"),
    [
        ((None, 3, 2), ["", "", "weights: 2 of 3 peers took part"]),
        ((3, 0, 0), ["", "", ""]),  # under way, or waited for just now
        ((0, 3, 3), ["weights: what came of averaging them is not known", "", ""]),
    ],
)
def test_weights_without_everybody_fail_the_round(peers: tuple[int | None, ...], failures: list[str]) -> None:
    rounds = AveragingRounds(3)
    for count in peers:
        rounds.current.peers, rounds.current.weights_peers = 3, count
        rounds.end()
    assert [each.failure for each in rounds.since(0)] == failures
