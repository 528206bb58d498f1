"""One launch of the groups of a study, alive together, measured in interleaved blocks; and what came of each."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from scaling_study.launch import launch_folders
from scaling_study.launch.attempts import Attempt, Attempts
from scaling_study.launch.launch_folders import FEWEST_ROUNDS, whole_rounds
from scaling_study.launch.warm_group import GroupFailed, Interrupted, WarmGroup
from scaling_study.processes import process
from scaling_study.processes.process import Exit
from scaling_study.records import outcome
from scaling_study.records.outcome import Outcome
from scaling_study.records.summary import Summary
from scaling_study.stats import launches
from scaling_study.stats.intervals import FEWEST_REPEATS, repeats_for
from scaling_study.study import groups
from scaling_study.study.plan import Planned
from scaling_study.study.study import Measure
from scaling_study.trial import Trial

if TYPE_CHECKING:
    from scaling_study.records.summary import Summary
    from scaling_study.study.plan import Planned

# How many repeats each configuration gets in all, decided once, from its planned ones (Stein's two stages).
#
#     by itself     as many as bring its throughput to +-target_interval
#     in rounds     as many launches as bring its ratio to the baseline there, which what came over all at once leaves
#                   alone; and the baseline as many as whatever is held against it. Where nothing of its model and
# batch
#                   is held against it, or nothing is known of the ratio: its throughput
#
# Adding one at a time until the interval looks narrow would stop at lucky streaks, and the interval would cover less
# than its nominal 95 % (docs/uncertainty.md has the figures).

Known = Callable[[Planned, int], Summary | None]  # the record of a configuration's n-th repeat, if it is finished


@dataclass(frozen=True)
class Against:
    """What is held against others: its configurations, and how they are paired (`scaling` of the study)."""

    baseline: Sequence[str] = ()
    scaling: str = "weak"


def totals(configurations: Sequence[Planned], known: Known, against: Against) -> dict[str, int]:
    """Configuration -> its repeats in all: the planned ones where these do not say more, and at most max_repeats.

    Failures are not mended by more repeats.
    """
    counts = {planned.trial.configuration: planned.measure.repeats for planned in configurations}
    most = {planned.trial.configuration: planned.measure.max_repeats for planned in configurations}
    asked = wanted(configurations, known, against)
    return {name: min(max(count, asked.get(name, 0)), most[name]) for name, count in counts.items()}


def wanted(
    configurations: Sequence[Planned], known: Known, against: Against, target: float | None = None
) -> dict[str, int]:
    """Configuration -> how many repeats bring it to `target`, by default its own target_interval; of those that have
    all their planned repeats."""
    asked = {planned.trial.configuration: planned for planned in configurations}
    measured = {name: records for name, planned in asked.items() if (records := _all(planned, known))}
    shared = {name: asked[name] for name, records in measured.items() if all(record.launch for record in records)}
    counts = _of_ratios(shared, measured, against, target) if against.baseline and shared else {}
    for name, records in measured.items():
        if name not in counts:
            rates = [record.samples_per_second or math.nan for record in records]
            counts[name] = repeats_for(rates, target or asked[name].measure.target_interval)
    return {name: max(count, asked[name].measure.repeats) for name, count in counts.items()}


def _all(planned: Planned, known: Known) -> list[Summary]:
    """The planned repeats, where all of them are ok and there are enough; else none."""
    count = planned.measure.repeats
    if planned.seeds or planned.unsupported or count < FEWEST_REPEATS:
        return []
    records = [record for repeat in range(1, count + 1) if (record := known(planned, repeat))]
    return records if len(records) == count and all(record.samples_per_second for record in records) else []


def _of_ratios(
    shared: Mapping[str, Planned], measured: Mapping[str, Sequence[Summary]], against: Against, target: float | None
) -> dict[str, int]:
    """Launches of configurations that shared them, and of what these are held against; of no others."""
    names = list(shared)
    logs = [
        {launches.together(record.launch): math.log(record.samples_per_second or math.nan) for record in measured[name]}
        for name in names
    ]
    whose = {name: groups.processes(planned.trial) for name, planned in shared.items()}
    spreads = dict(zip(names, launches.spreads(launches.table(logs), list(whose.values())), strict=True))
    counts = dict[str, int]()
    held = {name: planned for name, planned in shared.items() if name not in against.baseline}
    for other in set(against.baseline) & set(shared):
        for name, planned in held.items():
            if groups.comparable(shared[other].trial, planned.trial, against.scaling):
                variance, freedom = launches.of_ratio(spreads[name], spreads[other], whose[name] == whose[other])
                more = launches.needed(variance, freedom, target or planned.measure.target_interval)
                if freedom:
                    counts[name], counts[other] = (max(counts.get(each, 0), more) for each in (name, other))
    return counts


# Rounds through the configurations of all groups that are alive: one block of each, in an order drawn anew.
#
#     round 1    DDP, batch 64 | single, batch 32 | DDP, batch 32 | single, batch 64       each: half a second of steps
#     round 2    single, batch 64 | DDP, batch 32 | ...                                    the others are stopped
#
# What is compared was measured within seconds, so a machine that drifts falls on all alike; the order is drawn, so
# nobody comes after the same neighbour each time.


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


def run_rounds(
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


# One launch of the groups of a study, as many as have room, alive together in rounds; and what came of each.
#
#     build every group | rounds | ... what failed is run alone          the groups that had no room: another launch
#
# What ends early is a launch of the whole rounds that it had. A group that others went on without is held against none
# of
# them, as they have other rounds: its launch has a name of its own, `3/0.4-1-horovod` in place of `3/0-1-horovod`.

AMONG_OTHERS = "in a launch with others: "  # begins the reason of what is well by itself
MOST_MEMORY = 0.6  # of the machine's, of what a container may use, and of a GPU's, that groups may have together


def again(
    due: Sequence[Trial], baseline: Iterable[tuple[Trial, Planned]], known: Mapping[str, Summary], scaling: str
) -> list[tuple[Trial, Planned]]:
    """Of the baseline, what these are held against and what another launch has measured: once more, beside them.

    Under repeats that no study asks for, so that each stays the only one of its number.
    """
    found = []
    for trial, planned in baseline:
        measured = trial.id in known and known[trial.id].status == "ok" and trial not in due
        if trial.warm and measured and any(groups.comparable(trial, other, scaling) for other in due):
            repeats = [r.trial.repeat for r in known.values() if r.configuration == trial.configuration]
            number = max(planned.measure.max_repeats, *repeats) + 1
            measure = planned.measure.model_copy(update={"repeats": number})  # planned, whatever spread there is
            found.append((planned.at(number), replace(planned, measure=measure)))
    return found


def alone(trials: Iterable[tuple[Trial, Planned]], known: Mapping[str, Summary]) -> list[tuple[Trial, Planned]]:
    """Of these, what failed among others and was well by itself: once more, not warm, as what is measured alone."""
    found = []
    for trial, planned in trials:
        record = known.get(trial.id)
        if record and record.status == "failed" and record.reason.startswith(AMONG_OTHERS):
            found.append((groups.cooled(trial), replace(planned, trial=groups.cooled(planned.trial))))
    return found


def measured(
    due: Mapping[Trial, Measure], places: Mapping[str, Path], folder: Path, memory_bytes: int, attempts: Attempts,
    watch: Watch, baseline: Collection[str] = (),
) -> dict[str, Attempt]:  # fmt: skip
    """What came of warm configurations, by id, each in its place: of those that had room in memory, which the first
    always has; where the sweep is to end, of those that have enough rounds to be kept.

    One that fails in a launch is run alone, where it says by itself what is wrong; the others are measured without it.
    `folder`: for what the launch leaves. `baseline`: the configurations of which one is its canary.
    """
    launch = _Launch(due, places, folder, memory_bytes, attempts, watch, baseline)
    done = launch.run()
    for trial, failure in () if launch.interrupted else launch.failed.items():
        watch.alone(trial)
        (place := places[trial.id] / "alone").mkdir()
        attempt = attempts.run_with_retries(trial, place, due[trial])
        if attempt.outcome.status == "cancelled":
            break
        if attempt.outcome.status == "ok":  # it may not be to blame, but was not measured as asked for
            why, name = failure
            attempt = replace(attempt, outcome=Outcome("failed", f"{AMONG_OTHERS}{why}"), launch=name)
            attempt = launch.had.get(trial) or attempt
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
    baseline: Collection[str]
    failed: dict[Trial, tuple[str, str]] = field(default_factory=dict)  # why, and the name of its launch
    had: dict[Trial, Attempt] = field(default_factory=dict)  # of these, what is theirs if it was not their fault
    interrupted: bool = False
    started: int = 0  # groups, of which each has a folder

    def run(self) -> dict[str, Attempt]:
        """Build as many groups as have room in memory, and run their rounds."""
        built: list[Built[WarmGroup]] = []
        started_at, start = time.time(), time.monotonic()
        try:
            with contextlib.ExitStack() as alive:
                self._build(built, alive)
                if built:
                    after_failure = functools.partial(self._after_failure, alive)
                    run_rounds(built, self.folder.name, self.watch, after_failure, self.baseline)
        except Interrupted:
            self.interrupted = True
        share = (time.monotonic() - start) / max(1, sum(len(each.trials) for each in built))
        had = (zip(each.blocks, each.trials, strict=True) for each in built if not each.failure)
        whole = launch_folders.whole_rounds(itertools.chain.from_iterable(had))
        results: dict[str, Attempt] = {}
        for each in built:
            results |= self._attempts(each, started_at, share, whole if self.interrupted else None)
        return results

    def _build(self, built: list[Built[WarmGroup]], alive: contextlib.ExitStack) -> None:
        """Start groups, into `built`, until one has no room.

        A group is together with what it is compared with most, so it is parted only where it has no room alone. Large
        batches are built first, whose freed memory the small ones use again. The first of all must be measured.
        """
        first = next(iter(self.due))
        for group in groups.groups(self.due):
            known, whole = self.attempts.group_bytes, frozenset(trial.configuration for trial in group)
            if group[0].device == "cuda" and any(each.gpu_share > MOST_MEMORY for each in built):
                return
            if (room := self._room(built)) <= 0 or (built and known.get(whole, 0) > room):
                return
            order = sorted(group, key=lambda trial: (trial != first, -trial.global_batch))
            if not (ready := self._built(order, room, alive)):
                continue
            full = bool(built) and ready.gpu_share > MOST_MEMORY
            # Or more, where a part was built. What it takes of a GPU is not known: it is not tried beside others again.
            known[whole] = math.inf if full else max(known.get(whole, 0), ready.resident_bytes)
            if built and (full or ready.resident_bytes > room or {*group} - {*ready.trials, *self.failed}):
                return ready.ending.close()
            built.append(ready)

    def _after_failure(
        self, alive: contextlib.ExitStack, ended: Built[WarmGroup], begin_anew: bool
    ) -> Built[WarmGroup] | None:
        """What takes the place of a group that failed, where rounds are to begin anew. All of it is on the disk before
        others go on: whoever takes over from a driver that dies knows who failed, and whose rounds are fewer."""
        assert ended.failure
        self._fail(ended.failure, ended.group)
        others = [trial for trial in ended.trials if trial not in self.failed]
        if begin_anew:
            return self._built(others, math.inf, alive)
        for trial in others:
            note = launch_folders.short_of(trial, ended.whole, ended.failure)
            launch_folders.set_apart(self.folder, trial, _name(ended), note)
        return None

    def _fail(self, failed: GroupFailed, group: WarmGroup) -> None:
        """These are to be run alone. What they had measured is no launch of theirs, whoever asks."""
        self.failed |= dict.fromkeys(failed.trials, (str(failed), f"{self.folder.name}/{group.folder.name}"))
        for trial in failed.trials:
            launch_folders.take_back(self.folder, trial, self.places[trial.id])

    def _room(self, built: Sequence[Built[WarmGroup]]) -> float:
        """Bytes that another group may have."""
        return MOST_MEMORY * min(self.memory_bytes, process.memory_limit_bytes()) - sum(
            each.resident_bytes for each in built
        )

    def _built(self, trials: Sequence[Trial], room: float, alive: contextlib.ExitStack) -> Built[WarmGroup] | None:
        """One group, started and built, which stays alive with the others; without those that cannot be built."""
        retries, attempt = max((self.due[trial].retries for trial in trials), default=0), 1
        while trials:
            own = [self.places[trial.id] for trial in trials]
            for place in own:
                shutil.rmtree(place / "ranks", ignore_errors=True)  # of a launch that failed
            group = WarmGroup(
                trials, self.folder / f"0-{self.started}-{trials[0].framework}", own,
                max(self.due[trial].timeout_seconds for trial in trials), self.attempts.cluster,
                self.attempts.supervisor, attempt,
            )  # fmt: skip
            self.started += 1
            try:
                with contextlib.ExitStack() as ending:
                    built = Built.of(ending.enter_context(group), self.watch, room)
                    built.ending = alive.enter_context(ending.pop_all())
                    return built
            except GroupFailed as failed:
                if not group.ranks and attempt <= retries:  # a port was taken, or the like: nothing of them was tried
                    attempt += 1
                    continue
                self._fail(failed, group)
                trials = [trial for trial in trials if trial not in self.failed]
        return None

    def _attempts(
        self, built: Built[WarmGroup], started_at: float, share_seconds: float, whole: int | None
    ) -> dict[str, Attempt]:
        """What came of its configurations, by id, each with its share of the launch's time. `whole`: rounds that all
        had before the study was stopped; nothing is kept of fewer than FEWEST_ROUNDS."""
        group, found = built.group, dict[str, Attempt]()
        early = bool(built.failure) or whole is not None
        if built.failure:
            whole = built.whole if whole is None else min(whole, built.whole)
        exit = replace((None if early else group.exit) or Exit(None, 0.0), seconds=share_seconds)
        for index, trial in enumerate(built.trials):
            place = self.places[trial.id] / ("shared" if trial in self.failed else "")
            asked = trial.window.rounds or 0
            if whole is not None and whole < asked and not launch_folders.cut(place, trial, whole):
                continue
            # Where it ended early its reports are what counts.
            result = outcome.judge(trial, place, Exit(0, share_seconds) if early else exit)
            if early and result.status != "ok":
                continue
            changed = sorted(group.changed.get(index, ()))
            notes = [f"its steps change, for the whole process: {', '.join(changed)} (put back)"] if changed else []
            if whole is not None and whole < asked:
                notes.append(launch_folders.short_of(trial, whole, built.failure or "the study was stopped"))
            attempt = Attempt(exit, result, started_at, notes=tuple(notes), launch=_name(built))
            if trial not in self.failed:
                found[trial.id] = attempt
            elif not (built.failure and built.failure.said):
                self.had[trial] = attempt
        return found


def _name(built: Built[WarmGroup]) -> str:
    """Of its launch; of one that others went on without: of its own."""
    folder = built.group.folder
    apart = f".{built.whole}-" if built.failure else "-"
    return f"{folder.parent.name}/{folder.name.replace('-', apart, 1)}"
