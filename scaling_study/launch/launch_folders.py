"""The record of a launch that configurations share, and what counts of one that ended early.

    launches/3/launch.json           the launch's number and start; of each group of processes: its members and state
    launches/3/begun/<trial>.json    a member's record without an outcome, until the launch is over
    launches/3/0-1-horovod/          log.txt, blocks.jsonl and request.json of its second group (warm_group.py)
    launches/gates-2/                parity gates that one launch ran in turn

Each rank writes its report into the trial's folder after every block (worker/in_blocks.py), and nobody changes it
there. `LaunchRecord.result` reads the reports and takes the blocks that count. The driver calls it for a launch that
ends early, and the next driver (`kept`) for a launch whose own driver was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from scaling_study.launch.warm_group import BLOCKS
from scaling_study.processes.leftovers import LAUNCHES
from scaling_study.records import outcome, store
from scaling_study.records import results as results_folder
from scaling_study.records.outcome import Outcome
from scaling_study.records.results import Summary
from scaling_study.records.schema import RankReport, Record
from scaling_study.settings import utc_now
from scaling_study.trial import Trial

FILE, BEGUN = "launch.json", "begun"
UNBELIEVABLE = (store.UnreadableRecord, KeyError, TypeError, ValueError, ArithmeticError)  # of reports not ours
FEWEST_BLOCKS = 2  # that are kept of a launch that ends early: one block says nothing of its own spread
OLDER_GROUP = re.compile(r"(?:\d+/)?(\d+)(?:\.(\d+))?-(\d+)-(\w+)")  # folders and names of programs without launch.json


class GroupState(StrEnum):
    """The states of a group of processes (the diagram is in shared_launch.py)."""

    PLANNED = "planned"
    STARTING = "starting"
    WARMING = "warming"
    TAKING_TURNS = "taking turns"
    FINISHED = "finished"
    LEFT_BEHIND = "left behind"
    FAILED = "failed"


NEXT: Mapping[GroupState, tuple[GroupState, ...]] = {
    GroupState.PLANNED: (GroupState.STARTING,),
    GroupState.STARTING: (GroupState.WARMING, GroupState.PLANNED, GroupState.FAILED),
    GroupState.WARMING: (GroupState.TAKING_TURNS, GroupState.PLANNED, GroupState.FAILED),
    GroupState.TAKING_TURNS: (GroupState.FINISHED, GroupState.LEFT_BEHIND, GroupState.FAILED),
}


GOING_ON = (GroupState.TAKING_TURNS, GroupState.FINISHED)


@dataclass
class GroupRecord:
    """One group of processes of a launch."""

    group: int  # counted from 0 in the order of their start
    framework: str
    members: list[str]  # ids of the trials that it measures
    state: GroupState = GroupState.PLANNED
    blocks: int | None = None  # of a group that was left behind: the blocks that all of its members had
    why: str = ""  # it was left behind or has failed
    at_fault: list[str] = field(default_factory=list)  # members that may have caused that, and are run alone
    batch: int = 0  # of older programs, which started groups without room after the others, in the same launch

    @property
    def folder(self) -> str:
        """The name of its folder in that of the launch."""
        return f"{self.batch}-{self.group}-{self.framework}"


@dataclass
class LaunchRecord:
    """The record of a launch, while it runs and after it; `launch.json` is replaced at each change."""

    folder: Path
    number: int
    started_at: str = ""  # ISO 8601, UTC
    groups: list[GroupRecord] = field(default_factory=list)

    def move(self, group: GroupRecord, state: GroupState) -> None:
        """Note the next state of a group on the disk. Raises ValueError for one that cannot follow."""
        if state not in NEXT.get(group.state, ()):
            raise ValueError(f"a group that is {group.state} cannot be {state} next")
        group.state = state
        self.write()

    def write(self) -> None:
        groups = [dataclasses.asdict(group) for group in self.groups]
        store.write_json(self.folder / FILE, {"number": self.number, "started_at": self.started_at, "groups": groups})

    def end(self) -> None:
        """All of its trials are finished, or are to be run again."""
        shutil.rmtree(self.folder / BEGUN, ignore_errors=True)

    def name(self, group: GroupRecord) -> str:
        """`Record.launch` of its members: `3/0-1-horovod`.

        Groups that went through the same blocks have the part before the first hyphen in common: `3/0`. One that was
        left behind after 4 blocks has its own, `3/0.4`, so no ratio is taken to others (stats/launches.together).
        """
        own = "" if group.blocks is None else f".{group.blocks}"
        return f"{self.number}/{group.batch}{own}-{group.group}-{group.framework}"

    def blocks(self, group: GroupRecord, trials: Mapping[str, Trial], folders: Mapping[str, Path]) -> int:
        """The blocks that count of a group: those that all members had, also of the groups that were still with it.

        `trials`, `folders`: of the launch's members, by id.
        """
        if group.blocks is not None:
            return group.blocks
        beside = [each for each in self.groups if each.batch == group.batch and each.blocks is None]
        names = [name for each in beside if each.state in GOING_ON for name in each.members if name in trials]
        had = dict.fromkeys(names, 0)  # blocks that all ranks have reported; one that is ended within it may lack that
        for name in names:
            with contextlib.suppress(store.UnreadableRecord):
                had[name] = min(len(each.blocks) for each in store.read_ranks(folders[name], trials[name].processes))
        return whole_blocks((count, trials[name]) for name, count in had.items())

    def result(self, trial: Trial, folder: Path, blocks: int, why: str) -> Outcome | None:
        """A member's outcome, of so many blocks of a launch that ended early because of `why`.

        None where these are too few, or reports are not whole.
        """
        asked = trial.window.rounds or 0
        count = min(blocks, asked)
        if count < min(FEWEST_BLOCKS, asked):
            return None
        with contextlib.suppress(*UNBELIEVABLE):
            reports = store.read_ranks(folder, trial.processes)
            if count and count <= min(len(report.blocks) for report in reports):
                ranks = tuple(first_blocks(report, count) for report in reports)
                if not outcome.first_problem(trial, ranks):
                    note = f"its launch ended after {blocks} of {asked} blocks: {why}"
                    return Outcome("ok", ranks=ranks, notes=(note,) if count < asked else ())
        return None


def next_folder(results: Path, records: Iterable[Summary], kind: str = "") -> Path:
    """The folder of a new launch, with a number that no launch or record has. `kind`: "gates-" or nothing."""
    names = [path.name for path in (results / LAUNCHES).glob(f"{kind}*")] + [known.launch for known in records]
    numbers = [name.removeprefix(kind).partition("/")[0] for name in names if name.startswith(kind)]
    return results / LAUNCHES / f"{kind}{1 + max((int(each) for each in numbers if each.isdecimal()), default=0)}"


def begin(launch: Path, records: Iterable[Record]) -> LaunchRecord:
    """Write what a later driver needs to finish these trials, should this one be killed."""
    for record in records:
        store.write_json(launch / BEGUN / f"{record.id}.json", record.to_dict())
    made = LaunchRecord(launch, int(launch.name), utc_now())
    made.write()
    return made


def whole_blocks(had: Iterable[tuple[int, Trial]]) -> int:
    """The blocks that all of these trials had, each given with its count; one that had all it asked for is no limit."""
    blocks = [(count, count >= (trial.window.rounds or 0)) for count, trial in had]
    return min((count for count, done in blocks if not done), default=max((count for count, _ in blocks), default=0))


def first_blocks(report: RankReport, count: int) -> RankReport:
    """A rank's report as if it had ended after so many blocks."""
    blocks = report.blocks[:count]
    seconds = report.step_seconds[: sum(block.steps for block in blocks)]
    if len(seconds) == len(report.step_seconds):
        return dataclasses.replace(report, blocks=blocks)
    share = sum(seconds) / report.window_seconds
    samples = report.samples_seen * len(seconds) // len(report.step_seconds)  # steps of a command may have unlike ones
    measured = ("own_cpu_seconds", "host_cpu_seconds", "throttled_seconds", "energy_joules")
    scaled = {name: value * share for name in measured if (value := getattr(report, name)) is not None}
    return dataclasses.replace(
        report,
        blocks=blocks,
        step_seconds=seconds,
        samples_seen=samples,
        tokens_seen=report.tokens_seen and round(report.tokens_seen * samples / report.samples_seen),
        loss_last=None,  # it was of a step that is gone, and so may skipped steps have been
        skipped_steps=None if report.skipped_steps else report.skipped_steps,
        **scaled,
    )


def kept(results: Path) -> dict[str, Summary]:
    """Finish the trials of launches whose driver was killed, where enough blocks count; by id. Raises HostError."""
    found = {}
    for begun in sorted((results / LAUNCHES).glob(f"*/{BEGUN}")):
        for record in _finished(results, begun.parent):
            try:
                store.write_record(results / "trials" / record.id, record)
            except OSError as error:
                raise results_folder.write_error(results, error, first=True) from error
            found[record.id] = results_folder.summarize(record)
        shutil.rmtree(begun)
    return found


def _finished(results: Path, folder: Path) -> Iterator[Record]:
    """Records of the members that have none yet."""
    begun: dict[str, Record] = {}
    for path in (folder / BEGUN).glob("*.json"):
        with contextlib.suppress(store.UnreadableRecord):  # those are run again
            record = store.read_record(path)
            if record.id == record.trial.id:
                begun[record.id] = record
    launch = _read(folder, begun)
    trials = {name: record.trial for name, record in begun.items()}
    folders = {name: results / "trials" / name for name in begun}
    counted = [group for group in launch.groups if group.state in (*GOING_ON, GroupState.LEFT_BEHIND)]
    for group, blocks in [(group, launch.blocks(group, trials, folders)) for group in counted]:
        for name in [name for name in group.members if name in begun and name not in group.at_fault]:
            result = launch.result(trials[name], folders[name], blocks, group.why or "its driver ended")
            if result and not (folders[name] / "record.json").exists():
                yield dataclasses.replace(
                    begun[name],
                    status="ok",
                    reason="",
                    ranks=list(result.ranks),
                    launch=launch.name(group),
                    notes=begun[name].notes or list(result.notes),
                )


def _read(folder: Path, begun: Mapping[str, Record]) -> LaunchRecord:
    """The record of a launch; no groups where it is not whole, so that its trials are run again."""
    try:
        value: dict[str, Any] = store.load(folder / FILE)
        groups = TypeAdapter(list[GroupRecord]).validate_python(value["groups"])
        return LaunchRecord(folder, int(value["number"]), str(value["started_at"]), groups)
    except store.MissingRecord:
        return _of_an_older_program(folder, begun)
    except (store.UnreadableRecord, ValueError, TypeError, KeyError):  # pydantic's too, which is a ValueError
        return LaunchRecord(folder, 0)


def _of_an_older_program(folder: Path, begun: Mapping[str, Record]) -> LaunchRecord:
    """The launch as its folders' names say. A trial is a member of the last group that ran a block of it; the record
    of one that was left behind has the launch's name already."""
    groups: dict[str, str] = {}  # trial -> its group's folder, or its launch's name
    for path in sorted(folder.glob(f"*/{BLOCKS}"), key=lambda path: path.stat().st_mtime):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                record = begun[str(json.loads(line)["trial"])]
                groups[record.id] = record.launch or path.parent.name
    launch = LaunchRecord(folder, int(folder.name) if folder.name.isdecimal() else 0)
    for name in dict.fromkeys(groups.values()):
        if found := OLDER_GROUP.fullmatch(name):
            batch, blocks, group, framework = found.groups()
            members = [id for id, own in groups.items() if own == name]
            state = GroupState.LEFT_BEHIND if blocks else GroupState.TAKING_TURNS
            number = int(blocks) if blocks else None
            launch.groups.append(GroupRecord(int(group), framework, members, state, number, batch=int(batch)))
    return launch
