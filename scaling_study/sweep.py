"""The loop that ties plan, launchers, processes and records together.

    for each trial of the plan, then of extra rounds for configurations that are not yet sure enough:
        finished before?  keep it      cannot run here?  say so      else  run -> judge -> record

Everything a trial leaves lies in its own folder, and its record.json is renamed into place last: whatever
happens to the driver, the next run of the same study goes on from there.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from scaling_study import largest, launchers, outcome, process, provenance, records, results
from scaling_study.guardian import Watch
from scaling_study.intervals import FEWEST_REPEATS, repeats_for
from scaling_study.plan import Plan, Planned
from scaling_study.records import Record
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial, Window

TRY = Window(warmup_steps=1, min_steps=2, max_steps=2, min_seconds=0.0)  # of find: max_batch: the peak is in step 2


class Display(Protocol):
    """What shows the sweep to a person (progress.py)."""

    def starts(self, trial: Trial, planned: Planned) -> None: ...
    def finished(self, trial: Trial, planned: Planned, record: Record, again: bool) -> None: ...


@dataclass
class Run:
    """One run of a plan into a results folder."""

    plan: Plan
    folder: Path  # results/<study>
    where: Mapping[str, Any] = field(default_factory=dict)  # run only trials whose keys match
    retry: frozenset[str] = frozenset()  # statuses to run again
    max_trials: int | None = None  # run at most this many now
    records: dict[str, Record] = field(default_factory=dict)  # finished ones, by trial id
    ran: int = 0

    def run(self, display: Display, interruption: process.Interruption) -> None:
        """Run what is not finished. Returns early when interrupted or after max_trials."""
        with Watch(self.folder, interruption) as watch:
            self.watched(display, watch)

    def watched(self, display: Display, watch: Watch) -> None:
        for trial, planned in self.trials():
            known = self.records.get(trial.id)
            if known and known.status not in self.retry:
                display.finished(trial, planned, known, again=True)
                continue
            if self.stopped(watch):
                return
            display.starts(trial, planned)
            record = self.one(trial, planned, watch)
            if record is None:  # interrupted: it stays unfinished, the next run takes it up again
                return
            self.records[trial.id] = record
            self.ran += 1
            display.finished(trial, planned, record, again=False)

    def trials(self) -> Iterator[tuple[Trial, Planned]]:
        """The planned rounds, then as many more as the spread of the planned ones asks for."""
        for trial, planned in self.plan.trials():
            if self.wanted(trial.to_dict()):
                yield trial, planned
        totals = {p.trial.configuration: self.repeats(p) for p in self.plan.configurations}
        for repeat in range(1, max(totals.values(), default=0) + 1):
            for planned in self.plan.shuffled(repeat):
                if planned.measure.repeats < repeat <= totals[planned.trial.configuration]:
                    yield dataclasses.replace(planned.trial, repeat=repeat), planned

    def repeats(self, planned: Planned) -> int:
        """How many repeats this configuration gets in all, decided once, from its planned ones (Stein's two stages).

        Adding one at a time until the interval looks narrow would stop at lucky streaks, and the interval would
        cover less than it says (docs/methodology.md has the figures).
        """
        measure = planned.measure
        if planned.unsupported or measure.repeats < FEWEST_REPEATS or not self.wanted(planned.trial.to_dict()):
            return measure.repeats
        first = [
            self.records.get(dataclasses.replace(planned.trial, repeat=repeat).id)
            for repeat in range(1, measure.repeats + 1)
        ]
        rates = [throughput(record) for record in first if record and record.status == "ok"]
        if len(rates) < measure.repeats:
            return measure.repeats  # failures are not mended by more of them
        return min(max(repeats_for(rates, measure.target_interval), measure.repeats), measure.max_repeats)

    def wanted(self, keys: Mapping[str, Any]) -> bool:
        """Whether a trial with these keys matches --where."""
        return all(keys.get(key) == value for key, value in self.where.items())

    def stopped(self, watch: Watch) -> bool:
        return watch.signal is not None or (self.max_trials is not None and self.ran >= self.max_trials)

    def one(self, trial: Trial, planned: Planned, watch: Watch) -> Record | None:
        """Run one trial to its record; None if it was interrupted."""
        folder = self.folder / "trials" / trial.id
        aside = results.set_aside(folder)
        folder.mkdir(parents=True)
        by_hand = launchers.command(trial).shell(CHECKOUT)  # for the root of any checkout: results travel
        records.write_json(folder / "trial.json", {**trial.to_dict(), "window": dataclasses.asdict(trial.window)})
        (folder / "command.txt").write_text(by_hand + "\n", encoding="utf-8")
        record = Record(
            study=self.plan.study.name, id=trial.id, configuration=trial.configuration,
            trial=trial.to_dict(), window=dataclasses.asdict(trial.window), planned_repeats=planned.measure.repeats,
            status="unsupported", reason=planned.unsupported, started_at=provenance.utc_now(), command=by_hand,
            commit=provenance.commit(), machine=self.plan.machine.to_dict(), environment=provenance.environment(),
        )  # fmt: skip
        if not planned.unsupported:
            started, timeout = time.time(), planned.measure.timeout_seconds
            found: dict[str, Any] = {}
            if trial.find == "max_batch":
                ended, result, found = largest_batch(trial, folder, timeout, watch)
            else:
                ended, result = attempt(trial, folder, timeout, watch)
            if result.status == "cancelled":
                if aside:
                    results.restore(aside)
                return None
            verdict = ""
            if trial.find == "parity" and result.status == "ok":
                verdict = judged(folder, planned.measure.timeout_seconds, watch)
                if watch.signal is not None:
                    return None
                if verdict != "passed":
                    result = dataclasses.replace(result, status="failed", reason=f"parity: {verdict}")
            record = dataclasses.replace(
                record, parity=verdict, found=found, status=result.status, reason=result.reason, error=result.error,
                notes=list(result.notes),
                ranks=list(result.ranks), exit_code=ended.code, total_seconds=ended.seconds,
                launch_seconds=result.ranks[0].first_step_at - started if result.ranks else None,
            )  # fmt: skip
        records.write_record(folder, record)
        if aside:
            shutil.rmtree(aside, ignore_errors=True)
        return record


def attempt(trial: Trial, folder: Path, timeout: float, watch: Watch) -> tuple[process.Exit, outcome.Outcome]:
    """Run one trial's processes in its folder, and judge what they left."""
    command = launchers.command(trial, record=folder.resolve())
    ended = watch.run(command.argv, environment(command), folder / "log.txt", timeout)
    return ended, outcome.judge(trial, folder, ended)


def largest_batch(
    trial: Trial, folder: Path, timeout: float, watch: Watch
) -> tuple[process.Exit, outcome.Outcome, dict[str, Any]]:
    """The largest batch_per_worker that fits, and the outcome of its try; every try has a folder of its own."""
    tried: dict[int, tuple[process.Exit, outcome.Outcome]] = {}

    def fits(batch: int) -> bool:
        other = [result for _, result in tried.values() if result.status not in ("ok", "oom")]
        if not other:  # a failure of another kind ends the search: it says nothing about memory
            there = folder / "tries" / f"batch-{batch}"
            there.mkdir(parents=True)
            tried[batch] = attempt(
                dataclasses.replace(trial, find=None, batch_per_worker=batch, window=TRY), there, timeout, watch
            )
        return batch in tried and tried[batch][1].status == "ok"

    batch = largest.search(fits, trial.batch_per_worker)
    wrong = next((size for size, (_, result) in tried.items() if result.status not in ("ok", "oom")), None)
    chosen = wrong or batch or min(tried)
    found = {"max_batch": batch, "tries": {str(size): result.status for size, (_, result) in tried.items()}}
    return *tried[chosen], found if wrong is None else {}


def judged(folder: Path, timeout: float, watch: Watch) -> str:
    """`passed`, or why the framework does not train what one process would; the checks stay in parity.json.

    A process of its own compares: what a framework did to torch cannot reach it, and the driver needs no torch.
    """
    command = [sys.executable, "-m", "scaling_study.parity.check", str(folder.resolve())]
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))  # users' workloads
    ended = watch.run(command, {"PYTHONPATH": path}, folder / "parity.txt", timeout)
    try:
        return str(records.load(folder / "parity.json")["verdict"])
    except records.UnreadableRecord:
        return f"could not be judged: exit code {ended.code}, see {folder.name}/parity.txt"


def throughput(record: Record) -> float:
    """Samples per second over all workers: samples in the timed window over the slowest rank's seconds."""
    return sum(r.samples_seen for r in record.ranks) / max(sum(r.step_seconds) for r in record.ranks)


def environment(command: launchers.Command) -> dict[str, str]:
    """The command's own variables, with this environment's programs (mpirun) first on the path."""
    bin = str(Path(command.argv[0]).parent)
    path = os.environ.get("PATH", os.defpath)
    home = {} if os.environ.get("HOME") else {"HOME": os.path.expanduser("~")}  # Open MPI 5 does not start without
    return {"PATH": f"{bin}{os.pathsep}{path}" if os.path.isabs(bin) else path, **home, **command.env}
