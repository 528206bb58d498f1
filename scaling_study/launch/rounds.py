"""Rounds through the configurations of all groups that are alive: one block of each, in an order drawn anew.

    round 1    DDP, batch 64 | single, batch 32 | DDP, batch 32 | single, batch 64       each: half a second of steps
    round 2    single, batch 64 | DDP, batch 32 | ...                                    the others are stopped

What is compared was measured within seconds, so a machine that drifts falls on all alike; the order is drawn, so
nobody comes after the same neighbour each time.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from scaling_study.launch.launch_folders import FEWEST_ROUNDS, whole_rounds
from scaling_study.launch.warm_group import GroupFailed
from scaling_study.trial import Trial

if TYPE_CHECKING:
    from scaling_study.records.summary import Summary
    from scaling_study.study.plan import Planned


class Group(Protocol):
    """What is asked of a launch (warm_group.py)."""

    @property
    def trials(self) -> Sequence[Trial]: ...
    def build(self, index: int) -> Sequence[Mapping[str, Any]]: ...
    def block(self, index: int, round: int, steps: int, untimed: bool) -> list[list[float]]: ...
    def turn(self) -> AbstractContextManager[None]: ...


class Watch(Protocol):
    """Who is told how far a launch is (progress.py)."""

    def building(self, trial: Trial) -> None: ...
    def alone(self, trial: Trial) -> None: ...
    def round_begins(self, launch: int, round: int, of: int) -> None: ...
    def block_timed(self, trial: Trial, step_seconds: float) -> None: ...


class Display(Watch, Protocol):
    """What shows a sweep to a person (progress.py)."""

    def starts(self, trial: Trial, planned: Planned) -> None: ...
    def expects(self, more: Sequence[tuple[Trial, Planned]]) -> None: ...
    def finished(self, trial: Trial, planned: Planned, record: Summary, again: bool) -> None: ...


class Unwatched:
    """Nobody is, nor of what is to come."""

    def expects(self, more: Sequence[object]) -> None: ...
    def building(self, trial: Trial) -> None: ...
    def alone(self, trial: Trial) -> None: ...
    def round_begins(self, launch: int, round: int, of: int) -> None: ...
    def block_timed(self, trial: Trial, step_seconds: float) -> None: ...


AGroup = TypeVar("AGroup", bound=Group)


@dataclass
class Built(Generic[AGroup]):
    """A group whose first so many configurations are ready: all, or those that have room in memory."""

    group: AGroup
    step_seconds: list[float]  # of each configuration: its fastest step, later the mean of its last block
    resident_bytes: int  # of all its processes on the host that has most of them
    gpu_share: float  # in use, by whomever, of the memory of that of its GPUs which is fullest; 0 on a CPU
    blocks: list[int] = field(default_factory=list)  # of each configuration, that are timed
    failure: GroupFailed | None = None  # for which it takes no part any more
    ending: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # of its processes

    def __post_init__(self) -> None:
        # Decided once: of steps about as long as a block, some would have one before them that is not timed.
        self.long = [t.window.is_long(seconds) for t, seconds in zip(self.trials, self.step_seconds, strict=True)]

    @classmethod
    def of(cls, group: AGroup, watch: Watch, room_bytes: float = math.inf) -> Built[AGroup]:
        answers: list[Sequence[Mapping[str, Any]]] = []
        resident = 0
        with group.turn():
            for index, trial in enumerate(group.trials):
                if resident > room_bytes:
                    break
                watch.building(trial)
                answers.append(group.build(index))
                by_host = Counter[str]()
                for rank in answers[-1]:
                    by_host[rank.get("host", "")] += rank["resident_bytes"]
                resident = max(by_host.values())
        step_seconds = [max(rank["step_seconds"] for rank in ranks) for ranks in answers]
        gpu_share = max(rank.get("gpu_share", 0.0) for rank in answers[-1])
        return cls(group, step_seconds, resident, gpu_share, blocks=[0] * len(answers))

    @property
    def trials(self) -> Sequence[Trial]:
        return self.group.trials[: len(self.blocks)]

    @property
    def whole(self) -> int:
        """Rounds that all of its configurations have had."""
        return whole_rounds(zip(self.blocks, self.trials, strict=True))

    def run_block(self, index: int, round: int) -> float:
        """Time one block; the mean seconds of its slowest rank's steps."""
        window, expected = self.trials[index].window, self.step_seconds[index]
        with self.group.turn():
            untimed = not self.long[index]  # the first step after a pause finds cold caches
            taken = self.group.block(index, round, window.steps_in_block(expected), untimed)
        self.step_seconds[index] = max(sum(seconds) / len(seconds) for seconds in taken)
        self.blocks[index] += 1
        return self.step_seconds[index]

    def end(self, failed: GroupFailed) -> None:
        """Take no part any more, and use neither memory nor time."""
        self.failure = failed
        self.ending.__exit__(type(failed), failed, failed.__traceback__)


AfterFailure = Callable[[Built[AGroup], bool], Built[AGroup] | None]  # of a group; whether rounds are to begin anew


def run(
    built: list[Built[AGroup]], seed: str, watch: Watch, after_failure: AfterFailure[AGroup],
    baseline: Collection[str] = (),
) -> None:  # fmt: skip
    """Run the rounds that the trials' windows ask for.

    The canary, of the `baseline`'s configurations the one with the shortest steps (of all, where none of them is
    there), is first in the first round and last in its last: it shows what changes over a launch.

    A group that fails takes no part any more, which `after_failure` is told. In its first rounds, which are too few to
    be kept, that puts another in its place, without the configuration that failed; then rounds begin anew, for all:
    what is compared has the same.
    """
    while not _all_rounds(built, seed, watch, after_failure, baseline):
        for each in built:
            each.blocks = [0] * len(each.blocks)


def _all_rounds(
    built: list[Built[AGroup]], seed: str, watch: Watch, after_failure: AfterFailure[AGroup], baseline: Collection[str]
) -> bool:
    """Whether all were run: not where they are to begin anew."""
    launch = min(trial.repeat for each in built for trial in each.trials)  # the baseline's further ones are beyond
    windows = {(at, i): trial.window for at, each in enumerate(built) for i, trial in enumerate(each.trials)}
    count = max(window.rounds or 0 for window in windows.values())
    canary = _canary(built, baseline)
    for round in range(count):
        order = [at for at, w in windows.items() if round < (w.rounds or 0) and not built[at[0]].failure]
        if not order:
            break
        watch.round_begins(launch, round + 1, count)
        random.Random(f"{seed}/{round}").shuffle(order)
        if round in (0, (windows[canary].rounds or 0) - 1):
            order.sort(key=lambda at: (at == canary) * (1 if round else -1))
        for at, index in order:
            each = built[at]
            if each.failure:
                continue
            try:
                watch.block_timed(each.trials[index], each.run_block(index, round))
            except GroupFailed as failed:
                each.end(failed)
                if another := after_failure(each, round < FEWEST_ROUNDS):
                    built[at] = another
                    return False
    return True


def _canary(built: Sequence[Built[AGroup]], baseline: Collection[str]) -> tuple[int, int]:
    """Its group and its place there."""
    alive = [(at, each) for at, each in enumerate(built) if not each.failure]
    seconds = {(at, i): each.step_seconds[i] for at, each in alive for i in range(len(each.trials))}
    of_baseline = [(at, i) for at, i in seconds if built[at].trials[i].configuration in baseline]
    return min(of_baseline or seconds, key=lambda at: seconds[at])
