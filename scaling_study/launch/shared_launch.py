"""One launch of the groups of a study, as many as have room, alive together in rounds; and what came of each.

    build every group | rounds | ... what failed is run alone          the groups that had no room: another launch

What ends early is a launch of the whole rounds that it had. A group that others went on without is held against none of
them, as they have other rounds: its launch has a name of its own, `3/0.4-1-horovod` in place of `3/0-1-horovod`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scaling_study.launch import launch_folders, rounds
from scaling_study.launch.attempts import Attempt, Attempts
from scaling_study.launch.rounds import Built, Watch
from scaling_study.launch.warm_group import GroupFailed, Interrupted, WarmGroup
from scaling_study.processes import process
from scaling_study.processes.process import Exit
from scaling_study.records import outcome
from scaling_study.records.outcome import Outcome
from scaling_study.records.summary import Summary
from scaling_study.study import groups
from scaling_study.study.plan import Planned
from scaling_study.study.schema import Measure
from scaling_study.trial import Trial

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
            repeats = [r.trial["repeat"] for r in known.values() if r.configuration == trial.configuration]
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
                    rounds.run(built, self.folder.name, self.watch, after_failure, self.baseline)
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
