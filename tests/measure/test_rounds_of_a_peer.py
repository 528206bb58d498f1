"""Rounds of one peer: counted in order, and whole only where all peers took part."""

from __future__ import annotations

from scaling_study.measure.rounds import Rounds


def rounds_of(*samples: int, peers: int = 2) -> Rounds:
    rounds = Rounds(peers)
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


def test_a_report_has_the_rounds_of_its_window() -> None:
    rounds = rounds_of(1, 2, 3)
    assert [each["samples"] for each in rounds.since(1)] == [2, 3]
    assert [each["samples"] for each in rounds.since(-1)] == [3]
    assert set(rounds.since(0)[0]) == {
        "samples", "peers", "failure", "matchmaking_seconds", "averaging_seconds", "matchmaking_blocked_seconds",
        "averaging_blocked_seconds",
    }  # fmt: skip


def test_a_round_without_everybody_says_why() -> None:
    rounds = Rounds(3)
    for peers, failure in ((3, ""), (2, ""), (1, "TimeoutError"), (0, "")):
        rounds.current.peers, rounds.current.failure = peers, failure
        rounds.end()
    assert [each["failure"] for each in rounds.since(0)] == ["", "2 of 3 peers took part", "TimeoutError", ""]
