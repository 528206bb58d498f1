"""Rounds through the configurations of all groups that are alive: one block of each, in an order drawn anew.

    round 1    DDP, batch 64 | single, batch 32 | DDP, batch 32 | single, batch 64       each: half a second of steps
    round 2    single, batch 64 | DDP, batch 32 | ...                                    the others are stopped

What is compared was measured within seconds, so a machine that drifts falls on all alike; the order is drawn, so
nobody comes after the same neighbour each time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from scaling_study.trial import Trial


class Group(Protocol):
    """What is asked of a launch (warm_group.py)."""

    @property
    def trials(self) -> Sequence[Trial]: ...
    def build(self, index: int) -> Sequence[Any]: ...
    def block(self, index: int, round: int, steps: int, untimed: bool) -> list[list[float]]: ...
    def report(self, index: int) -> None: ...
    def turn(self) -> AbstractContextManager[None]: ...


def run(
    groups: Sequence[Group], rounds: int, block_seconds: float, seed: str,
    watch: Callable[[Group, int, int], object] = lambda group, index, round: None,
) -> None:  # fmt: skip
    """Build all configurations of all groups, run the rounds, and have every rank report.

    Each block lasts about `block_seconds`, and at least a step. `watch` is called after each block. Groups are
    stopped between their turns. Raises what a group raises.
    """
    step_seconds: dict[tuple[int, int], float] = {}
    for at, group in enumerate(groups):
        with group.turn():
            for index in range(len(group.trials)):
                step_seconds[at, index] = max(answer["step_seconds"] for answer in group.build(index))
    order = list(step_seconds)
    for round in range(rounds):
        random.Random(f"{seed}/{round}").shuffle(order)
        for at, index in order:
            group, expected = groups[at], step_seconds[at, index]
            with group.turn():
                # The first step after a pause finds cold caches; one that is longer than a block is not spent on it.
                untimed = round == 0 or expected < block_seconds
                taken = group.block(index, round, steps_in(block_seconds, expected), untimed)
            step_seconds[at, index] = max(sum(seconds) / len(seconds) for seconds in taken)
            watch(group, index, round)
    for group in groups:
        with group.turn():
            for index in range(len(group.trials)):
                group.report(index)


def steps_in(block_seconds: float, step_seconds: float) -> int:
    """How many steps come nearest to a block's length, at least one."""
    return max(1, round(block_seconds / step_seconds))
