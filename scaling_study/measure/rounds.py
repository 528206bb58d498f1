"""Rounds of decentralised training: what each averaged, and what it waited for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Round:
    """One round of a peer, from the update before it to its own. Seconds are this peer's."""

    samples: int = 0  # that this peer gave
    peers: int = 0  # whose gradients (updates=local: weights) were averaged; 1: it went on by its own; 0: under way
    matchmaking_seconds: float = 0.0  # in which peers looked for each other, computing or not
    averaging_seconds: float = 0.0  # in which they exchanged tensors, likewise
    matchmaking_blocked_seconds: float = 0.0  # of these, in which the step did nothing else
    averaging_blocked_seconds: float = 0.0
    failure: str = ""  # why not all peers took part; empty: they did


class Rounds:
    """Of one peer, in order."""

    def __init__(self, peers: int) -> None:
        self.peers = peers  # that take part in a whole round
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

    def since(self, count: int) -> list[dict[str, Any]]:
        """The rounds after the first `count` (below zero: the last so many), as a report has them."""
        for each in self.over[count:]:
            if 0 < each.peers < self.peers and not each.failure:
                each.failure = f"{each.peers} of {self.peers} peers took part"
        return [asdict(each) for each in self.over[count:]]
