"""Averaging rounds of decentralised training: peers, seconds and failures of each."""

from __future__ import annotations

from dataclasses import dataclass

from scaling_study.records.store import AveragingRound

WEIGHTS_LATE = 2  # rounds after which an update has waited for the weights


@dataclass
class Round:
    """One averaging round of a peer, from the update before it to its own. Seconds are this peer's."""

    samples: int = 0  # that this peer gave
    peers: int = 0  # whose gradients (updates=local: weights) were averaged; 1: it went on by its own; 0: under way
    matchmaking_seconds: float = 0.0  # in which peers looked for each other, computing or not
    averaging_seconds: float = 0.0  # in which they exchanged tensors, computing or not
    matchmaking_blocked_seconds: float = 0.0  # of these, in which the step did nothing else
    averaging_blocked_seconds: float = 0.0
    weights_peers: int | None = None  # whose weights were averaged after it; 0: under way; None: none were to be
    weights_seconds: float = 0.0  # in which that looked for peers and exchanged tensors, while others computed or not
    weights_blocked_seconds: float = 0.0  # that this round's update waited for the weights of the round before
    failure: str = ""  # why not all peers took part; empty: they did


class Rounds:
    """The averaging rounds of one peer, in order. `late`: how many of the last may still be under way; None: a round
    need not be averaged."""

    def __init__(self, peers: int, late: int | None = 0) -> None:
        self.peers = peers  # that take part in a whole round
        self.late = late
        self.over: list[Round] = []
        self.current = Round()
        self.counted = 0  # rounds whose samples were asked for

    def uncounted(self) -> int:
        """Samples that this peer gave to the rounds that were over since the last call."""
        new, self.counted = self.over[self.counted :], len(self.over)
        return sum(each.samples for each in new)

    def end(self) -> None:
        """The current round is over, and another begins."""
        self.over.append(self.current)
        self.current = Round()

    def since(self, count: int) -> list[AveragingRound]:
        """The rounds after the first `count` (below zero: the last so many), as a report has them."""
        for age, each in enumerate(reversed(self.over)):
            each.failure = each.failure or self._failure(each, age)
        return [AveragingRound(**vars(each)) for each in self.over[count:]]

    def _failure(self, each: Round, age: int) -> str:
        """The reason why not all peers took part in a round that `age` others came after; empty where all did."""
        if not each.peers and self.late is not None and age >= self.late:
            return "nothing was averaged with anybody"
        if 0 < each.peers < self.peers:
            return f"{each.peers} of {self.peers} peers took part"
        if each.weights_peers and each.weights_peers < self.peers:
            return f"weights: {each.weights_peers} of {self.peers} peers took part"
        if each.weights_peers == 0 and age >= WEIGHTS_LATE:
            return "weights: what came of averaging them is not known"
        return ""
