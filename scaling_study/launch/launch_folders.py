"""The folders of launches that trials share: how they are numbered, and what is kept of one whose driver died.

    launches/3/begun/<trial>.json    a trial's record without an outcome, until the launch is over
    launches/3/0-1-horovod/          its second set of processes (warm_group.py)
    launches/gates-2/                gates that were run in turn

A rank's report is in the trial's folder from its first block on (worker/in_rounds.py). So whatever ended the driver,
the next one finds what was measured, and takes it for the launch that it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from scaling_study.launch.warm_group import BLOCKS
from scaling_study.processes.leftovers import LAUNCHES
from scaling_study.processes.process import Exit
from scaling_study.records import outcome, store, summary
from scaling_study.records import results as results_folder
from scaling_study.records.store import RankReport, Record
from scaling_study.records.summary import Summary
from scaling_study.stats.launches import together
from scaling_study.trial import Trial

BEGUN, SHARED = "begun", "shared"
NOT_OURS = (KeyError, TypeError, ValueError, ArithmeticError)  # what reports that no rank of ours left may raise
FEWEST_ROUNDS = 2  # that are a launch by themselves, where it ends early: one block says nothing of its own spread


def next_folder(results: Path, records: Iterable[Summary], kind: str = "") -> Path:
    """The folder of a new launch, whose number none before it had: examples have records alone. `kind`: "gates-"."""
    names = [path.name for path in (results / LAUNCHES).glob(f"{kind}*")] + [known.launch for known in records]
    numbers = [name.removeprefix(kind).partition("/")[0] for name in names if name.startswith(kind)]
    return results / LAUNCHES / f"{kind}{1 + max((int(each) for each in numbers if each.isdecimal()), default=0)}"


def begin(launch: Path, records: Iterable[Record]) -> None:
    """Leave what is needed to finish these trials, should the driver be killed."""
    for record in records:
        store.write_json(launch / BEGUN / f"{record.id}.json", record.to_dict())


def end(launch: Path) -> None:
    """All of its trials are finished, or are to be run again."""
    shutil.rmtree(launch / BEGUN, ignore_errors=True)


def take_back(launch: Path, trial: Trial, folder: Path) -> None:
    """What this trial had measured in the launch does not count, unless it turns out to be without fault: it is in
    `shared`."""
    (launch / BEGUN / f"{trial.id}.json").unlink(missing_ok=True)
    shutil.rmtree(folder / SHARED, ignore_errors=True)
    if (folder / "ranks").is_dir():
        (folder / SHARED).mkdir()
        (folder / "ranks").rename(folder / SHARED / "ranks")


def set_apart(launch: Path, trial: Trial, name: str, note: str) -> None:
    """Its processes have ended before others: its rounds, which are fewer, are a launch of this name."""
    path = launch / BEGUN / f"{trial.id}.json"
    with contextlib.suppress(store.UnreadableRecord):
        record = dataclasses.replace(store.read_record(path), launch=name, notes=[note])
        store.write_json(path, record.to_dict())


def cut(folder: Path, trial: Trial, rounds: int) -> bool:
    """Cut the reports of all ranks to so many rounds; whether these are enough, and there. Ranks that are stopped in
    the middle of a block do not leave it at the same point."""
    with contextlib.suppress(store.UnreadableRecord, *NOT_OURS):
        reports = store.read_ranks(folder, trial.processes)
        if FEWEST_ROUNDS <= rounds <= min(len(report.blocks) for report in reports):
            for report in reports:
                store.write_rank(folder, _cut(report, rounds))
            return True
    return False


def short_of(trial: Trial, whole: int, why: object) -> str:
    """A note for one whose launch ended early."""
    return f"its launch ended after {whole} of {trial.window.rounds} rounds: {why}"


def whole_rounds(had: Iterable[tuple[int, Trial]]) -> int:
    """Rounds that all of these have had, of which those that were to have fewer may be done."""
    blocks = [(count, count >= (trial.window.rounds or 0)) for count, trial in had]
    return min((count for count, done in blocks if not done), default=max((count for count, _ in blocks), default=0))


def _cut(report: RankReport, rounds: int) -> RankReport:
    blocks = report.blocks[:rounds]
    seconds = report.step_seconds[: sum(int(block["steps"]) for block in blocks)]
    share = sum(seconds) / report.window_seconds
    samples = len(seconds) * report.samples_per_step
    scaled = {
        name: value * share for name in ("own_cpu_seconds", "host_cpu_seconds", "energy_joules")
        if (value := getattr(report, name)) is not None
    }  # fmt: skip
    tokens = report.tokens_seen and round(report.tokens_seen * samples / report.samples_seen)
    if len(seconds) < len(report.step_seconds):  # the loss was of a step that is gone; so may skipped ones have been
        skipped = None if report.skipped_steps else report.skipped_steps
        report = dataclasses.replace(report, loss_last=None, skipped_steps=skipped)
    return dataclasses.replace(
        report, blocks=blocks, step_seconds=seconds, samples_seen=samples, tokens_seen=tokens, **scaled
    )


def kept(results: Path) -> dict[str, Summary]:
    """Finish the trials of launches whose driver was killed, where they had rounds enough; by id. Raises HostError."""
    found = {}
    for begun in sorted((results / LAUNCHES).glob(f"*/{BEGUN}")):
        for record in _of_launch(results, begun.parent):
            folder = results / "trials" / record.id
            try:
                store.write_record(folder, record)
            except OSError as error:
                raise results_folder.first_write_error(results, error) from error
            found[record.id] = summary.summarize(record)
        end(begun.parent)
    return found


def _of_launch(results: Path, launch: Path) -> Iterator[Record]:
    """Of all that were alive together: its trials, cut to the rounds that all of them had."""
    begun = {}
    for path in (launch / BEGUN).glob("*.json"):
        with contextlib.suppress(store.UnreadableRecord, KeyError):  # those are run again
            record = store.read_record(path)
            trial = record.trial
            if record.id == trial.id and not (results / "trials" / trial.id / "record.json").exists():
                begun[trial.id] = record, trial
    names: dict[str, str] = {}  # trial -> its launch: its own, or its group's, the last that was started
    for blocks in sorted(launch.glob(f"*/{BLOCKS}"), key=lambda path: path.stat().st_mtime):
        for line in blocks.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                record, _ = begun[id := str(json.loads(line)["trial"])]
                names[id] = record.launch or f"{launch.name}/{blocks.parent.name}"
    for batch in dict.fromkeys(map(together, names.values())):
        there = {id: (*begun[id], name) for id, name in names.items() if together(name) == batch}
        had = ((_rounds(results / "trials" / id, trial), trial) for id, (_, trial, _) in there.items())
        whole = int(apart) if (apart := batch.partition(".")[2]) else whole_rounds(had)
        for id, (record, trial, name) in there.items():
            folder, asked = results / "trials" / id, trial.window.rounds or 0
            if not cut(folder, trial, min(whole, asked)):
                continue
            if (done := outcome.judge(trial, folder, Exit(0, 0.0))).status == "ok":
                note = short_of(trial, whole, "its driver ended")
                yield dataclasses.replace(
                    record, status="ok", reason="", ranks=list(done.ranks), launch=name,
                    notes=record.notes or ([note] if whole < asked else []),
                )  # fmt: skip


def _rounds(folder: Path, trial: Trial) -> int:
    """That all of its ranks have reported."""
    with contextlib.suppress(store.UnreadableRecord):
        return min(len(report.blocks) for report in store.read_ranks(folder, trial.processes))
    return 0
