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
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from scaling_study.launch.attempts import Attempt, Attempts
from scaling_study.launch.warm_group import GroupFailed, Interrupted, WarmGroup
from scaling_study.processes.process import Exit
from scaling_study.records import outcome
from scaling_study.records.outcome import Outcome
from scaling_study.study import groups
from scaling_study.study.schema import Measure
from scaling_study.trial import Trial, Window

MOST_MEMORY = 0.6  # of the machine's, that groups may have together


class Group(Protocol):
    """What is asked of a launch (warm_group.py)."""

    @property
    def trials(self) -> Sequence[Trial]: ...
    def build(self, index: int) -> Sequence[Mapping[str, Any]]: ...
    def block(self, index: int, round: int, steps: int, untimed: bool) -> list[list[float]]: ...
    def report(self, index: int) -> None: ...
    def turn(self) -> AbstractContextManager[None]: ...


class Watch(Protocol):
    """Who is told how far a launch is (progress.py)."""

    def building(self, trial: Trial) -> None: ...
    def round_begins(self, launch: int, round: int, of: int) -> None: ...
    def block_timed(self, trial: Trial, step_seconds: float) -> None: ...


class Unwatched:
    """Nobody is."""

    def building(self, trial: Trial) -> None: ...
    def round_begins(self, launch: int, round: int, of: int) -> None: ...
    def block_timed(self, trial: Trial, step_seconds: float) -> None: ...


AGroup = TypeVar("AGroup", bound=Group)


@dataclass(frozen=True)
class Built(Generic[AGroup]):
    """A group whose configurations are ready."""

    group: AGroup
    step_seconds: list[float]  # of each configuration's fastest step so far
    resident_bytes: int  # of all its processes

    @classmethod
    def of(cls, group: AGroup, watch: Watch) -> Built[AGroup]:
        answers = []
        with group.turn():
            for index, trial in enumerate(group.trials):
                watch.building(trial)
                answers.append(group.build(index))
        resident = sum(answer["resident_bytes"] for answer in answers[-1])
        return cls(group, [max(rank["step_seconds"] for rank in ranks) for ranks in answers], resident)


def run(built: Sequence[Built[Any]], seed: str, watch: Watch) -> None:
    """Run the rounds that the trials' windows ask for, and have every rank report."""
    step_seconds = {(at, i): s for at, each in enumerate(built) for i, s in enumerate(each.step_seconds)}
    windows = {(at, i): built[at].group.trials[i].window for at, i in step_seconds}
    count = max((window.rounds or 0 for window in windows.values()), default=0)
    for round in range(count):
        watch.round_begins(built[0].group.trials[0].repeat, round + 1, count)
        order = [place for place, window in windows.items() if round < (window.rounds or 0)]
        random.Random(f"{seed}/{round}").shuffle(order)
        for at, index in order:
            group, window, expected = built[at].group, windows[at, index], step_seconds[at, index]
            with group.turn():
                # The first step after a pause finds cold caches; one that is longer than a block is not spent on it.
                untimed = round == 0 or expected < (window.block_seconds or 0.0)
                taken = group.block(index, round, steps_in_block(window, expected), untimed)
            step_seconds[at, index] = max(sum(seconds) / len(seconds) for seconds in taken)
            watch.block_timed(group.trials[index], step_seconds[at, index])
    for each in built:
        with each.group.turn():
            for index in range(len(each.group.trials)):
                each.group.report(index)


def steps_in_block(window: Window, step_seconds: float) -> int:
    """How many steps come nearest to a block's length; never so few that all rounds have less than their minima."""
    seconds = max(window.block_seconds or 0.0, window.min_seconds / (window.rounds or 1))
    return max(1, round(seconds / step_seconds), math.ceil(window.min_steps / (window.rounds or 1)))


def measured(
    due: Mapping[Trial, Measure], places: Mapping[str, Path], folder: Path, memory_bytes: int, attempts: Attempts,
    watch: Watch,
) -> dict[str, Attempt]:  # fmt: skip
    """What came of warm configurations, by id, each in its place; nothing if the sweep is to end.

    One that fails in a launch is run alone, where it says by itself what is wrong; the others are measured without it.
    `folder`: for what the launches leave.
    """
    launch = _Launch(due, places, folder, memory_bytes, attempts, watch)
    done = dict[str, Attempt]()
    try:
        while not done and (together := [trial for trial in due if trial not in launch.failed]):
            try:
                done = launch.of(together)
            except GroupFailed as failed:  # in the middle of its rounds
                launch.failed |= dict.fromkeys(failed.trials, str(failed))
    except Interrupted:
        return {}
    for trial, why in launch.failed.items():
        (place := places[trial.id] / "alone").mkdir()
        attempt = attempts.run_with_retries(trial, place, due[trial])
        if attempt.outcome.status == "cancelled":
            return {}
        if attempt.outcome.status == "ok":  # it may not be to blame, but was not measured as asked for
            attempt = replace(attempt, outcome=Outcome("failed", f"in a launch with others: {why}"))
        done[trial.id] = attempt
    return done


@dataclass
class _Launch:
    """What `measured` asks for, and why some of it cannot be measured with the others."""

    due: Mapping[Trial, Measure]
    places: Mapping[str, Path]
    folder: Path
    memory_bytes: int
    attempts: Attempts
    watch: Watch
    failed: dict[Trial, str] = field(default_factory=dict)
    started: int = 0  # groups, of which each has a folder

    def of(self, trials: Sequence[Trial]) -> dict[str, Attempt]:
        """One launch of every group: as many alive together as have room in memory, then the others.

        Raises GroupFailed where a group fails in its rounds, and Interrupted; then nothing is kept.
        """
        results: dict[str, Attempt] = {}
        waiting, batch = groups.groups(trials), 0
        while waiting:
            started_at, start = time.time(), time.monotonic()
            with contextlib.ExitStack() as alive:
                built: list[Built[WarmGroup]] = []
                while waiting and sum(each.resident_bytes for each in built) < MOST_MEMORY * self.memory_bytes:
                    if ready := self._built(waiting.pop(0), batch, alive):
                        built.append(ready)
                if built:
                    run(built, self.folder.name, self.watch)
            launched = [each.group for each in built]
            share = (time.monotonic() - start) / max(1, sum(len(group.trials) for group in launched))
            for group in launched:
                for trial in group.trials:
                    results[trial.id] = _attempt(trial, group, self.places[trial.id], started_at, share)
            batch += 1
        return results

    def _built(self, trials: Sequence[Trial], batch: int, alive: contextlib.ExitStack) -> Built[WarmGroup] | None:
        """One group, started and built, which stays alive with the others; without those that cannot be built."""
        while trials:
            own = [self.places[trial.id] for trial in trials]
            for place in own:
                shutil.rmtree(place / "ranks", ignore_errors=True)  # of a launch that failed
            group = WarmGroup(
                trials, self.folder / f"{batch}-{self.started}-{trials[0].framework}", own,
                max(self.due[trial].timeout_seconds for trial in trials), self.attempts.cluster,
                self.attempts.supervisor,
            )  # fmt: skip
            self.started += 1
            try:
                with contextlib.ExitStack() as until_built:
                    built = Built.of(until_built.enter_context(group), self.watch)
                    alive.push(until_built.pop_all())
                    return built
            except GroupFailed as failed:
                self.failed |= dict.fromkeys(failed.trials, str(failed))
                trials = [trial for trial in trials if trial not in self.failed]
        return None


def _attempt(trial: Trial, group: WarmGroup, place: Path, started_at: float, share_seconds: float) -> Attempt:
    """What came of one configuration. The time that it took is its share of that of its launch."""
    launch = f"{group.folder.parent.name}/{group.folder.name}"
    ended = group.exit or Exit(None, 0.0)
    exit = Exit(ended.code, share_seconds, lost=ended.lost)
    changed = sorted(group.changed.get(group.trials.index(trial), ()))
    notes = (f"its steps change, for the whole process: {', '.join(changed)} (put back)",) if changed else ()
    return Attempt(exit, outcome.judge(trial, place, exit), started_at, notes=notes, launch=launch)
