"""The loop that ties plan, launchers, processes and records together.

    for each trial of the plan, then of extra rounds while intervals are too wide:
        finished before?  keep it      cannot run here?  say so      else  run -> judge -> record

Everything a trial leaves lies in its own folder, and its record.json is renamed into place last: whatever
happens to the driver, the next run of the same study goes on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from scaling_study import launchers, outcome, process, records
from scaling_study.errors import Trouble
from scaling_study.intervals import between_repeats
from scaling_study.plan import Plan, Planned
from scaling_study.records import Record
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial


class Display(Protocol):
    """What shows the sweep to a person (progress.py)."""

    def starts(self, trial: Trial, planned: Planned) -> None: ...
    def finished(self, trial: Trial, planned: Planned, record: Record, again: bool) -> None: ...


@dataclass
class Sweep:
    """One run of a plan into a results folder."""

    plan: Plan
    results: Path  # results/<study>
    where: Mapping[str, Any] = field(default_factory=dict)  # run only trials whose keys match
    retry: frozenset[str] = frozenset()  # statuses to run again
    max_trials: int | None = None  # run at most this many now
    records: dict[str, Record] = field(default_factory=dict)  # finished ones, by trial id
    ran: int = 0

    def run(self, display: Display, interruption: process.Interruption) -> None:
        """Run what is not finished. Returns early when interrupted or after max_trials."""
        for trial, planned in self.trials():
            known = self.records.get(trial.id)
            if known and known.status not in self.retry:
                display.finished(trial, planned, known, again=True)
                continue
            if self.stopped(interruption):
                return
            display.starts(trial, planned)
            record = self.one(trial, planned, interruption)
            if record is None:  # interrupted: it stays unfinished, the next run takes it up again
                return
            self.records[trial.id] = record
            self.ran += 1
            display.finished(trial, planned, record, again=False)

    def trials(self) -> Iterator[tuple[Trial, Planned]]:
        """The planned rounds, then one more at a time for configurations that are not yet sure enough."""
        for trial, planned in self.plan.trials():
            if self.wanted(trial):
                yield trial, planned
        rounds = max((p.measure.max_repeats for p in self.plan.configurations), default=0)
        for repeat in range(1, rounds + 1):
            unsure = tuple(p for p in self.plan.configurations if self.unsure(p, repeat))
            for planned in dataclasses.replace(self.plan, configurations=unsure).shuffled(repeat):
                yield dataclasses.replace(planned.trial, repeat=repeat), planned

    def unsure(self, planned: Planned, repeat: int) -> bool:
        """Whether this configuration's interval between repeats is still wider than asked."""
        measure = planned.measure
        if not measure.repeats < repeat <= measure.max_repeats or planned.unsupported or not self.wanted(planned.trial):
            return False
        done = [r for r in self.records.values() if r.configuration == planned.trial.configuration]
        rates = [throughput(r) for r in done if r.status == "ok"]
        if len(rates) < measure.repeats:
            return False  # failures are not mended by more of them
        width = between_repeats(rates).relative_half_width
        return width is None or width > measure.target_interval

    def wanted(self, trial: Trial) -> bool:
        keys = trial.to_dict()
        return all(keys.get(key) == value for key, value in self.where.items())

    def stopped(self, interruption: process.Interruption) -> bool:
        return interruption.signal is not None or (self.max_trials is not None and self.ran >= self.max_trials)

    def one(self, trial: Trial, planned: Planned, interruption: process.Interruption) -> Record | None:
        """Run one trial to its record; None if it was interrupted."""
        folder = self.results / "trials" / trial.id
        if folder.exists():  # an earlier try that was not finished, or is to be retried
            shutil.rmtree(folder)
        command = launchers.command(trial, record=folder.resolve())
        folder.mkdir(parents=True)
        records.write_json(folder / "trial.json", {**trial.to_dict(), "window": dataclasses.asdict(trial.window)})
        (folder / "command.txt").write_text(launchers.command(trial).shell() + "\n", encoding="utf-8")
        base = Record(
            study=self.plan.study.name, id=trial.id, configuration=trial.configuration,
            trial=trial.to_dict(), window=dataclasses.asdict(trial.window), status="unsupported",
            reason=planned.unsupported, started_at=utc_now(), command=launchers.command(trial).shell(),
            commit=commit(), machine=self.plan.machine.to_dict(),
        )  # fmt: skip
        if planned.unsupported:
            records.write_record(folder, base)
            return base
        started = time.time()
        exit = process.run(
            command.argv, environment(command), folder / "log.txt", planned.measure.timeout_seconds, interruption
        )
        result = outcome.judge(trial, folder, exit)
        if result.status == "cancelled":
            return None
        record = dataclasses.replace(
            base, status=result.status, reason=result.reason, error=result.error, notes=list(result.notes),
            ranks=list(result.ranks), exit_code=exit.code, total_seconds=exit.seconds,
            launch_seconds=result.ranks[0].first_step_at - started if result.ranks else None,
        )  # fmt: skip
        records.write_record(folder, record)
        return record


def throughput(record: Record) -> float:
    """Samples per second over all workers: samples in the timed window over the slowest rank's seconds."""
    return sum(r.samples_seen for r in record.ranks) / max(sum(r.step_seconds) for r in record.ranks)


def environment(command: launchers.Command) -> dict[str, str]:
    """The command's own variables, with this environment's programs (mpirun) first on the path."""
    bin = str(Path(command.argv[0]).parent)
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{bin}{os.pathsep}{path}" if os.path.isabs(bin) else path, **command.env}


def open_results(results: Path, plan: Plan) -> dict[str, Record]:
    """Make or reopen results/<study>; the finished records by trial id. Raises Trouble where they do not fit."""
    try:
        (results / "trials").mkdir(parents=True, exist_ok=True)
        study = {
            "schema": records.SCHEMA,
            "study": plan.study.name,
            "scaling": plan.study.scaling,
            "baseline": plan.study.baseline,
            "machine": plan.machine.to_dict(),
            "cores_per_worker": max((p.trial.cores_per_worker or 1 for p in plan.configurations), default=1),
            "seed": plan.study.seed,
            "target_interval": plan.study.measure.target_interval,
        }
        if (results / "study.json").exists():
            _check_same(results, study)
        records.write_json(results / "study.json", study)
        (results / "study.yaml").write_text(plan.study.document.text, encoding="utf-8")
    except OSError as error:
        raise Trouble(
            f"{results}: cannot write results there: {error.strerror}; choose another with --results"
        ) from error
    found = {}
    for path in sorted((results / "trials").glob("*/record.json")):
        with contextlib.suppress(records.UnreadableRecord):  # not believed, so it is run again
            record = records.read_record(path)
            found[record.id] = record
    return found


def _check_same(results: Path, study: Mapping[str, Any]) -> None:
    """Raises Trouble if the folder belongs to another study, or to unlike hardware or shares of it."""
    try:
        before = records.load(results / "study.json")
    except records.UnreadableRecord as error:
        raise Trouble(f"{error}; move it away, or choose another folder with --results") from error
    if before.get("study") != study["study"]:
        raise Trouble(
            f"{results} holds study {before.get('study')!r}, not {study['study']!r}: choose another --results"
        )
    was, now = before.get("machine", {}), study["machine"]
    if was.get("fingerprint") != now["fingerprint"]:
        unlike = [
            f"{k} {was.get(k)} then, {v} now"
            for k, v in now.items()
            if k not in ("fingerprint", "libraries") and was.get(k) != v
        ]
        raise Trouble(f"{results} was measured on another machine ({'; '.join(unlike)}): choose another --results")
    if before.get("cores_per_worker") != study["cores_per_worker"]:
        raise Trouble(
            f"{results} was measured with {before.get('cores_per_worker')} core(s) a worker, the study now gives "
            f"{study['cores_per_worker']} (its largest worker count changed): choose another --results"
        )


@contextlib.contextmanager
def locked(results: Path) -> Iterator[None]:
    """Hold the results folder. Raises Trouble, naming the holder, if another driver has it."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        file = (results / ".driver").open("a+", encoding="utf-8")
    except OSError as error:
        raise Trouble(
            f"{results}: cannot write results there: {error.strerror}; choose another with --results"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise Trouble(
                f"{results} is in use by another run ({file.read().strip()}); wait for it, or stop it"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} since {utc_now()}\n")
        file.flush()
        yield


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str:
    """This project's commit, "+changes" if the tree is not clean, "" outside a checkout."""
    global _commit
    if _commit is None:
        asked = ["git", "-C", str(CHECKOUT), "describe", "--always", "--abbrev=12", "--dirty=+changes", "--exclude=*"]
        try:
            _commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:  # no git on this machine
            _commit = ""
    return _commit


_commit: str | None = None
