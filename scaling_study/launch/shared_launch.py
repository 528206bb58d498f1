"""One launch of several groups of processes, alive together, whose configurations are measured in turn.

    group 0  single       batch 32, 64     build, warm up | block 1: DDP 64 | single 32 | DDP 32 | single 64
    group 1  torch_ddp    batch 32, 64     build, warm up | block 2: single 64 | DDP 32 | ...
                                                             a block: half a second of steps; all others are stopped

What is compared was measured within seconds, so a machine that drifts falls on all alike. The order is drawn anew for
each block, so no configuration always follows the same neighbour. A group's states (launch_folders.py records them):

    planned --> starting --> warming --> taking turns --> finished
       ^           |           | |            |
       +-----------+-----------+ |            +--> left behind    its processes ended after block 2 or later: its blocks
        no room: it waits for    |            |                   count as a launch by themselves, the others go on
        another launch           |            |
                   +-------------+------------+--> failed         its processes ended before that

After a failure, the configurations that may have caused it are run alone at the end, where each says by itself what
is wrong. The group's other configurations get a new group, and all begin again with block 1.

The order of a launch: `Launch.measure` starts groups as long as memory lasts (`_start_groups`, `_started`),
`take_turns` measures blocks and hands a failure to `_after_failure`, `_attempts` makes each configuration's Attempt.
"""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scaling_study import control_groups
from scaling_study.launch.attempts import Attempt, Attempts, gpus_before
from scaling_study.launch.command_group import CommandGroup
from scaling_study.launch.launch_folders import FEWEST_BLOCKS, GroupRecord, GroupState, LaunchRecord, whole_blocks
from scaling_study.launch.warm_group import GroupFailed, Interrupted, WarmGroup
from scaling_study.processes.process import Exit
from scaling_study.records import outcome
from scaling_study.records.outcome import Outcome
from scaling_study.records.results import Summary
from scaling_study.records.schema import GpuUse
from scaling_study.study import groups, on_gpus
from scaling_study.study.on_gpus import MOST_MEMORY
from scaling_study.study.plan import Planned
from scaling_study.study.study import Measure
from scaling_study.trial import Trial

AMONG_OTHERS = "in a launch with others: "  # begins the reason of a trial that failed there and was ok alone
STOPPED = "the study was stopped"


class Watch:
    """Receives the progress of a sweep, and shows nothing; a display overrides methods (commands/progress.py)."""

    def starts(self, planned: Planned) -> None: ...
    def expects(self, more: Sequence[Planned]) -> None: ...
    def finished(self, planned: Planned, record: Summary, again: bool) -> None: ...
    def building(self, trial: Trial) -> None: ...
    def alone(self, trial: Trial) -> None: ...
    def block_begins(self, launch: int, block: int, of: int) -> None: ...
    def block_timed(self, trial: Trial, step_seconds: float) -> None: ...


@dataclass
class Built:
    """A group whose first configurations are built and warm: all of them, or those that have room in memory."""

    group: WarmGroup
    record: GroupRecord
    step_seconds: list[float]  # of each configuration: its fastest step, later the mean of its last block
    resident_bytes: int  # of all its processes on the host that has most of them
    gpu_share: float  # in use, by any process, of the memory of its fullest GPU; 0 on a CPU
    blocks: list[int]  # timed so far, of each configuration
    failure: GroupFailed | None = None  # that ended its processes
    ending: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # closing it ends its processes

    def __post_init__(self) -> None:
        # Decided once: of steps about as long as a block, some would have one before them that is not timed.
        self.long = [t.window.is_long(seconds) for t, seconds in zip(self.trials, self.step_seconds, strict=True)]

    @classmethod
    def of(
        cls,
        group: WarmGroup,
        record: GroupRecord,
        watch: Watch,
        room_bytes: float = math.inf,
        inspected: Collection[Trial] = (),
    ) -> Built:
        """Build configurations in turn, until the group has more than `room_bytes`."""
        answers: list[Sequence[Mapping[str, Any]]] = []
        resident = 0
        with group.turn():
            for index, trial in enumerate(group.trials):
                if resident > room_bytes:
                    break
                watch.building(trial)
                answers.append(group.build(index, trial not in inspected))
                by_host = Counter[str]()
                for rank in answers[-1]:
                    by_host[rank.get("host", "")] += rank["resident_bytes"]
                resident = max(by_host.values())
        step_seconds = [max(rank["step_seconds"] for rank in ranks) for ranks in answers]
        gpu_share = max(rank.get("gpu_share", 0.0) for rank in answers[-1])
        return cls(group, record, step_seconds, resident, gpu_share, blocks=[0] * len(answers))

    @property
    def trials(self) -> Sequence[Trial]:
        return self.group.trials[: len(self.blocks)]

    def run_block(self, index: int, block: int) -> float:
        """Time one block of a configuration; returns the mean step seconds of its slowest rank."""
        steps = self.trials[index].steps_in_block(self.step_seconds[index])
        with self.group.turn():
            untimed = not self.long[index]  # the first step after a pause finds cold caches
            taken = self.group.block(index, block, steps, untimed)
        self.step_seconds[index] = max(statistics.fmean(seconds) for seconds in taken)
        self.blocks[index] += 1
        return self.step_seconds[index]

    def end(self, failed: GroupFailed) -> None:
        """End its processes."""
        self.failure = failed
        self.ending.__exit__(type(failed), failed, failed.__traceback__)


AfterFailure = Callable[[Built, bool], Built | None]  # (the group that ended, whether blocks begin again) -> its heir


def take_turns(
    built: list[Built], seed: str, watch: Watch, after_failure: AfterFailure, sentinels: Collection[str] = ()
) -> None:
    """Time as many blocks of each configuration as its window asks for.

    The sentinel is first in the first block and last in its last, so that it shows what changes over a launch. It is
    the configuration with the shortest steps: of `sentinels`, or of all where none of these is there.

    Where a group fails within its first FEWEST_BLOCKS, `after_failure` may return a group in its place, and all begin
    again with the first block: what is compared has the same blocks.
    """
    while not _all_blocks(built, seed, watch, after_failure, sentinels):
        for each in built:
            each.blocks = [0] * len(each.blocks)


def _all_blocks(
    built: list[Built], seed: str, watch: Watch, after_failure: AfterFailure, sentinels: Collection[str]
) -> bool:
    """Time all blocks. False as soon as they are to begin again."""
    launch = min(trial.repeat for each in built for trial in each.trials)  # the baseline's further ones are beyond
    windows = {(at, i): trial.window for at, each in enumerate(built) for i, trial in enumerate(each.trials)}
    count = max(window.rounds or 0 for window in windows.values())
    sentinel = _sentinel(built, sentinels)
    for block in range(count):
        order = [at for at, w in windows.items() if block < (w.rounds or 0) and not built[at[0]].failure]
        if not order:
            break
        watch.block_begins(launch, block + 1, count)
        random.Random(f"{seed}/{block}").shuffle(order)
        if block in (0, (windows[sentinel].rounds or 0) - 1):
            order.sort(key=lambda at: (at == sentinel) * (1 if block else -1))
        for at, index in order:
            each = built[at]
            if each.failure:
                continue
            try:
                watch.block_timed(each.trials[index], each.run_block(index, block))
            except GroupFailed as failed:
                each.end(failed)
                if another := after_failure(each, block < FEWEST_BLOCKS):
                    built[at] = another
                    return False
    return True


def _sentinel(built: Sequence[Built], sentinels: Collection[str]) -> tuple[int, int]:
    """(the sentinel's group, its place there)"""
    alive = [(at, each) for at, each in enumerate(built) if not each.failure]
    seconds = {(at, i): each.step_seconds[i] for at, each in alive for i in range(len(each.trials))}
    among = [(at, i) for at, i in seconds if built[at].trials[i].configuration in sentinels]
    return min(among or seconds, key=lambda at: seconds[at])


@dataclass
class Launch:
    """One launch while it runs."""

    due: Mapping[Trial, Measure]  # the configurations that it may measure
    places: Mapping[str, Path]  # trial id -> the trial's folder
    record: LaunchRecord
    memory_bytes: int  # of the machine
    attempts: Attempts
    watch: Watch
    sentinels: Collection[str] = ()  # configurations, one of which is first and last
    inspected: Collection[Trial] = ()  # whose phases, bytes, memory and peaks an earlier launch has
    alive: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # closing it ends all processes
    failed: dict[Trial, tuple[str, str]] = field(default_factory=dict)  # to be run alone: why, and its launch's name
    unless_at_fault: dict[Trial, Attempt] = field(default_factory=dict)  # of those: counts if they are ok alone
    interrupted: bool = False
    # Groups that start side by side, by their trials, until they are built.
    begun: dict[tuple[Trial, ...], tuple[GroupRecord, WarmGroup]] = field(default_factory=dict)
    gpu_memory_bytes: int = 0  # of the GPU that has least; 0: not known

    def measure(self) -> dict[str, Attempt]:
        """Each configuration's Attempt, by trial id.

        Configurations without room in memory have none; the first of `due` always has room. Where the sweep is to end,
        those with too few blocks have none.
        """
        built: list[Built] = []
        started_at, start, before = time.time(), time.monotonic(), gpus_before(*self.due)
        try:
            with self.alive:
                self._start_groups(built)
                for each in built:
                    self.record.move(each.record, GroupState.TAKING_TURNS)
                if built:
                    take_turns(built, self.record.folder.name, self.watch, self._after_failure, self.sentinels)
                for each in built:
                    if not each.failure:
                        self.record.move(each.record, GroupState.FINISHED)
                        each.group.leave()  # side by side: `alive` waits for each
        except Interrupted:
            self.interrupted = True
        share = (time.monotonic() - start) / max(1, sum(len(each.trials) for each in built))
        done: dict[str, Attempt] = {}
        for each in built:
            done |= self._attempts(each, started_at, share, before)
        return done if self.interrupted else done | self._measured_alone()

    def _measured_alone(self) -> dict[str, Attempt]:
        """The Attempts of configurations that failed, each run by itself, which says what is wrong with it."""
        done: dict[str, Attempt] = {}
        for trial, (why, name) in self.failed.items():
            self.watch.alone(trial)
            (place := self.places[trial.id] / "alone").mkdir()
            attempt = self.attempts.run_with_retries(trial, place, self.due[trial])
            if attempt.outcome.status == "cancelled":
                break
            if attempt.outcome.status == "ok":  # it may not be to blame, but was not measured as asked for
                failed = replace(attempt, outcome=Outcome("failed", f"{AMONG_OTHERS}{why}"), launch=name)
                attempt = self.unless_at_fault.get(trial, failed)
            done[trial.id] = attempt
        return done

    def _start_groups(self, built: list[Built]) -> None:
        """Start groups and add them to `built`, until one has no room.

        A group's configurations are compared with each other most, so it is parted only where it has no room alone.
        Large batches are built first, and small ones use their freed memory again. The first of `due` must be measured.
        """
        first = next(iter(self.due))
        orders = [sorted(g, key=lambda trial: (trial != first, -trial.global_batch)) for g in groups.groups(self.due)]
        self._begin_known(orders)
        for order in orders:
            known, whole = self.attempts.group_bytes, _configurations(order)
            if order[0].device == "cuda" and self._gpus_are_full(built, order):
                known[whole] = math.inf
                return self._end_begun()
            if (room := self._room(built)) <= 0 or (built and known.get(whole, 0) > room):
                return self._end_begun()
            if not (ready := self._started(order, room)):
                continue
            full = bool(built) and ready.gpu_share > MOST_MEMORY
            # Or more, where a part was built. What it takes of a GPU is not known: it is not tried beside others again.
            known[whole] = math.inf if full else max(known.get(whole, 0), ready.resident_bytes)
            if built and (full or ready.resident_bytes > room or {*order} - {*ready.trials, *self.failed}):
                ready.ending.close()
                self.record.move(ready.record, GroupState.PLANNED)
                return self._end_begun()
            built.append(ready)

    def _begin_known(self, orders: Sequence[Sequence[Trial]]) -> None:
        """Start side by side the groups that an earlier launch has shown to have room together, and wait until all have
        joined: what is built is inspected, and nothing else is to run meanwhile."""
        known, room = self.attempts.group_bytes, self._room(())
        for order in orders:
            if (bytes := known.get(_configurations(order))) is None or bytes > room:
                break
            room -= bytes
            self.begun[tuple(order)] = begun = self._planned(order)
            group = begun[1]
            self.alive.callback(group.end)
            with contextlib.suppress(GroupFailed):  # `_started` hears of it
                group.begin()
        for _, group in self.begun.values():
            with contextlib.suppress(GroupFailed):
                group.join()

    def _end_begun(self) -> None:
        """End the groups that were started and have no room after all."""
        for record, group in self.begun.values():
            group.end()
            self.record.move(record, GroupState.PLANNED)
        self.begun.clear()

    def _room(self, built: Sequence[Built]) -> float:
        """The bytes that another group may have."""
        most = MOST_MEMORY * min(self.memory_bytes, control_groups.memory_limit_bytes())
        return most - sum(each.resident_bytes for each in built)

    def _gpus_are_full(self, built: Sequence[Built], order: Sequence[Trial]) -> bool:
        """True where the fullest GPU has no room for one more group, as it is seen or, with this group, estimated."""
        seen = max((each.gpu_share for each in built), default=0.0)
        bytes = on_gpus.group_bytes(order) if built and self.gpu_memory_bytes else None
        return seen + (bytes or 0.0) / (self.gpu_memory_bytes or math.inf) > MOST_MEMORY

    def _started(self, trials: Sequence[Trial], room: float) -> Built | None:
        """Start one group and build its configurations, without those that cannot be built; None if there are none."""
        retries, attempt = max((self.due[trial].retries for trial in trials), default=0), 1
        while trials:
            begun = tuple(trials) in self.begun
            record, group = self.begun.pop(tuple(trials)) if begun else self._planned(trials, attempt)
            try:
                with contextlib.ExitStack() as ending:
                    entered = ending.enter_context(group)
                    self.record.move(record, GroupState.WARMING)
                    built = Built.of(entered, record, self.watch, room, self.inspected)
                    record.members = [trial.id for trial in built.trials]
                    built.ending = self.alive.enter_context(ending.pop_all())
                    return built
            except GroupFailed as failed:
                if not (group.ranks or failed.said or failed.late) and attempt <= retries:  # a port was taken, say
                    attempt += 1
                    failed.trials = []
                self._fail(record, failed)
                trials = [trial for trial in trials if trial not in self.failed]
        return None

    def _planned(self, trials: Sequence[Trial], attempt: int = 1) -> tuple[GroupRecord, WarmGroup]:
        """A group that is about to be started, and its record."""
        record = GroupRecord(len(self.record.groups), trials[0].framework, [trial.id for trial in trials])
        self.record.groups.append(record)
        self.record.move(record, GroupState.STARTING)
        folders = [self.places[trial.id] for trial in trials]
        for place in folders:
            shutil.rmtree(place / "ranks", ignore_errors=True)  # of a group that failed
        timeout_seconds = max(self.due[trial].timeout_seconds for trial in trials)
        cluster, stop = self.attempts.cluster, self.attempts.supervisor
        own = self.record.folder / record.folder
        kind = CommandGroup if trials[0].command else WarmGroup
        return record, kind(trials, own, folders, timeout_seconds, cluster, stop, attempt)

    def _after_failure(self, ended: Built, begin_again: bool) -> Built | None:
        """The group that takes the place of one that failed, where blocks begin again.

        The record is on the disk before others go on: a later driver knows which trials failed, and whose blocks are
        fewer.
        """
        assert ended.failure
        if not begin_again:
            ended.record.blocks = whole_blocks(zip(ended.blocks, ended.trials, strict=True))
            self._fail(ended.record, ended.failure, GroupState.LEFT_BEHIND)
            return None
        self._fail(ended.record, ended.failure)
        another = self._started([trial for trial in ended.trials if trial not in self.failed], math.inf)
        if another:
            self.record.move(another.record, GroupState.TAKING_TURNS)
        return another

    def _fail(self, record: GroupRecord, failed: GroupFailed, state: GroupState = GroupState.FAILED) -> None:
        """Note that a group ended, and that the trials which may have caused it are to be run alone."""
        name = f"{self.record.folder.name}/{record.folder}"
        self.failed |= dict.fromkeys(failed.trials, (str(failed), name))
        record.why, record.at_fault = str(failed), [trial.id for trial in failed.trials]
        self.record.move(record, state)

    def _attempts(
        self, built: Built, started_at: float, share_seconds: float, before: tuple[GpuUse, ...]
    ) -> dict[str, Attempt]:
        """The Attempt of each configuration of a group, by trial id, with its share of the launch's time."""
        record, group = built.record, built.group
        found: dict[str, Attempt] = {}
        if record.state is GroupState.FAILED:
            return found
        finished = record.state is GroupState.FINISHED
        exit = replace((group.exit if finished else None) or Exit(None, 0.0), seconds=share_seconds)
        blocks = 0 if finished else self.record.blocks(record, {trial.id: trial for trial in self.due}, self.places)
        for index, trial in enumerate(built.trials):
            if finished:
                result: Outcome | None = outcome.judge(trial, self.places[trial.id], exit)
            else:
                result = self.record.result(trial, self.places[trial.id], blocks, record.why or STOPPED)
            if not result:
                continue
            changed = ", ".join(sorted(group.changed.get(index, ())))
            notes = [f"its steps change, for the whole process: {changed} (put back)"] if changed else []
            notes += [groups.UNTESTED] if groups.on_several_gpus(trial) else []
            name = self.record.name(record)
            seen = before if trial.device == "cuda" else ()
            attempt = Attempt(exit, result, started_at, notes=tuple(notes), launch=name, gpus_before=seen)
            if trial not in self.failed:
                found[trial.id] = attempt
            elif built.failure and not built.failure.said:
                self.unless_at_fault[trial] = attempt
        return found


def gates_by_one_process(
    trials: Sequence[Trial], folders: Sequence[Path], timeout_seconds: float, own: Path, attempts: Attempts
) -> list[Attempt]:
    """Gates that processes of one launch train one after the other, as each process can join its peers only once (MPI).

    Only `ok` says something: what another of them did may be what failed. `own`: the launch's folder.
    """
    group = WarmGroup(trials, own, folders, timeout_seconds, attempts.cluster, attempts.supervisor)
    started_at, start = time.time(), time.monotonic()
    with contextlib.suppress(GroupFailed, Interrupted), group, group.turn():
        for index in range(len(trials)):
            group.gate(index)
    exit = replace(group.exit or Exit(None, 0.0), seconds=(time.monotonic() - start) / len(trials))
    return [
        Attempt(exit, outcome.judge(trial, folder, exit), started_at, launch=own.name)
        for trial, folder in zip(trials, folders, strict=True)
    ]


def _configurations(trials: Iterable[Trial]) -> frozenset[str]:
    return frozenset(trial.configuration for trial in trials)


def again(
    due: Sequence[Trial], baseline: Iterable[Planned], known: Mapping[str, Summary], scaling: str
) -> list[Planned]:
    """Trials of the baseline that another launch has measured and that `due` ones are held against.

    They are measured once more beside these, under repeats that no study asks for, so that no record is replaced.
    """
    found = []
    for planned in baseline:
        trial = planned.trial
        measured = trial.id in known and known[trial.id].status == "ok" and trial not in due
        if trial.warm and measured and any(groups.comparable(trial, other, scaling) for other in due):
            repeats = [r.trial.repeat for r in known.values() if r.configuration == trial.configuration]
            number = max(planned.measure.max_repeats, *repeats) + 1
            measure = planned.measure.model_copy(update={"repeats": number})  # planned, whatever spread there is
            found.append(replace(planned.at(number), measure=measure))
    return found


def alone(trials: Iterable[Planned], known: Mapping[str, Summary]) -> list[Planned]:
    """Trials that failed in a shared launch and were ok alone: once more, not warm, to be measured by themselves."""
    found = []
    for planned in trials:
        record = known.get(planned.trial.id)
        if record and record.status == "failed" and record.reason.startswith(AMONG_OTHERS):
            found.append(replace(planned, trial=groups.cooled(planned.trial)))
    return found
