"""The loop that ties plan, launchers, processes and records together.

    for each trial of the plan, then for more repeats of configurations that are not yet sure enough:
        finished before?  keep it      cannot run here, or a smaller batch was out of memory?  record that
        else  run -> judge -> record

Everything a trial leaves lies in its own folder, and its record.json is renamed into place last: whatever
happens to the driver, the next run of the same study goes on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling_study import models, settings, variables
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.hosts import hosts
from scaling_study.launch import decisions, launch_folders, launchers, shared_launch
from scaling_study.launch.attempts import Attempt, Attempts, removed_variables
from scaling_study.launch.decisions import Limits
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.processes import leftovers, process
from scaling_study.records import results, store
from scaling_study.records.results import Summary
from scaling_study.records.schema import Record
from scaling_study.settings import CHECKOUT
from scaling_study.study import groups
from scaling_study.study.plan import Plan, Planned
from scaling_study.trial import Trial


@dataclass
class Run:
    """One run of a plan into a results folder."""

    plan: Plan
    folder: Path  # results/<study>
    where: Mapping[str, Any] = field(default_factory=dict)  # run only trials whose keys match
    retry: frozenset[str] = frozenset()  # statuses to run again
    max_trials: int | None = None  # run at most this many now
    reset: bool = False  # trainings begin again, whatever they have checkpoints of
    prune: bool = True  # skip trials whose smaller batch was out of memory
    records: dict[str, Summary] = field(default_factory=dict)  # of finished trials, by their ids
    edits: list[str] = field(default_factory=list)  # in words: what the study was when it was last run here
    _limits: Limits = field(default_factory=Limits)
    _finished: set[str] = field(default_factory=set)  # ids of what this run has run
    _launched: dict[str, Summary] = field(default_factory=dict)  # of a launch, until their turn to be shown comes
    _tried: set[str] = field(default_factory=set)  # ids of gates that had a launch with others

    def open(self, in_jobs: Collection[str] = ()) -> None:
        """Make or reopen the results folder, and read what is finished. Raises HostError where it does not fit.

        `in_jobs`: ids of trials that jobs of their own may be running now, whose folders stay as they are.
        """
        leftovers.clean(self.folder)  # or ranks whose driver was killed would go on writing
        self.records, self.edits = results.open_results(self.folder, self.plan, in_jobs)
        self.records |= launch_folders.kept(self.folder)
        for known in self._standing():
            self._learn(known)
        self.edits += self.edited_models()

    def _standing(self) -> Iterator[Summary]:
        """The finished trials but for those that --retry runs again, which show nothing yet."""
        return (r for r in self.records.values() if r.status not in self.retry or not self.wanted(r.trial))

    def edited_models(self) -> Iterator[str]:
        """A warning for each model of the user's own whose code is not the code of its finished trials."""
        mine = {p.trial.configuration for p in (*self.plan.configurations, *self.plan.gates)} | {*self.plan.alone}
        measured: dict[str, Counter[str]] = {}
        for known in self._standing():
            if known.status == "ok" and known.model_code and known.configuration in mine:
                measured.setdefault(known.trial.model, Counter())[known.model_code] += 1
        for model, codes in measured.items():
            now = models.code_of(model, self.plan.cluster.models)
            if older := codes.total() - codes.pop(now, 0):
                yield (
                    f"Warning: {model} was edited after {older} of its finished trials were measured (SHA-256 "
                    f"{' and '.join(codes)} then, {now or 'not found'} now). Tables show both as one: --retry ok "
                    f"--where model={model} measures them again, another --results keeps them apart."
                )

    def run(self, display: shared_launch.Watch, interruption: process.Interruption) -> None:
        """Run what is not finished. Returns early when interrupted or after max_trials.

        Raises HostError when the results can no longer be written: the running trial then stays unfinished.
        """
        with SupervisorClient(self.folder, interruption) as supervisor:
            attempts = Attempts(supervisor, self.plan.cluster)
            for planned in self.trials(display.expects):
                trial = planned.trial
                if known := self.kept(planned):
                    display.finished(planned, known, again=True)
                    continue
                launched = trial.id in self._launched
                if not launched and (supervisor.signal is not None or self._left() <= 0):
                    if not self._launched:  # of a launch that was interrupted, some have records
                        return
                    continue
                display.starts(planned)
                shares = self.shares(planned)
                if not launched and trial.find == "parity":
                    self._launched |= self._gates(trial, attempts)
                elif not launched and shares:
                    self._launched |= self._launch(trial, attempts, display)
                record = self._launched.pop(trial.id, None)
                if record is None and not shares:
                    record = self.run_trial(planned, attempts)
                if record is None:  # interrupted: it stays unfinished, the next run takes it up again
                    continue
                self.records[trial.id] = record
                self._learn(record)
                self._finished.add(trial.id)
                display.finished(planned, record, again=False)

    def trials(self, expects: Callable[..., object] = list) -> Iterator[Planned]:
        """The planned repeats; those that are ok only when measured alone; as many more as spreads ask for.

        `expects` is told of the last two. What was implied comes after what it may rest on, which may be ok this time.
        """
        after, planned_trials = [], [planned for planned in self.plan.trials() if self.wanted(planned.trial)]
        for planned in planned_trials:
            known = self.records.get(planned.trial.id)
            if known and known.implied:
                after.append(planned)
            else:
                yield planned
        yield from after
        expects(alone := shared_launch.alone(planned_trials, self.records))
        yield from alone
        totals = self.totals()
        numbered = ((n, p) for n in range(1, max(totals.values(), default=0) + 1) for p in self.plan.shuffled(n))
        more = [p.at(n) for n, p in numbered if p.measure.repeats < n <= totals[p.trial.configuration]]
        expects(more := [planned for planned in more if self.wanted(planned.trial)])
        yield from more

    def totals(self) -> dict[str, int]:
        """Configuration -> how many repeats it gets in all, decided once, from its planned ones."""
        return decisions.total_repeats(self.plan.configurations, self._known, *self._held_against())

    def wanted_for(self, target: float) -> dict[str, int]:
        """Configuration -> the repeats that would bring it to this target; only those that have their planned ones."""
        return decisions.wanted_repeats(self.plan.configurations, self._known, *self._held_against(), target)

    def _known(self, planned: Planned, repeat: int) -> Summary | None:
        return self.records.get(planned.at(repeat).trial.id) if self.wanted(planned.trial) else None

    def _held_against(self) -> tuple[set[str], str]:
        """The baseline's configurations, and how others are paired with them."""
        return {trial.configuration for trial in self.plan.baseline}, self.plan.study.scaling

    def wanted(self, trial: Trial) -> bool:
        """True where a trial matches --where."""
        keys = trial.to_dict()
        return all(keys.get(key) == value for key, value in self.where.items())

    def kept(self, planned: Planned) -> Summary | None:
        """The finished record of a trial that need not be run, or cannot be run again here.

        What was implied is believed while it still is.
        """
        known = self.records.get(planned.trial.id)
        if known and known.implied:
            return known if self.implied(planned.trial) else None
        statuses = ["cancelled", *(self.retry if not planned.unsupported else ())]
        again = known and known.status in statuses and planned.trial.id not in self._finished
        return None if again else known

    def implied(self, trial: Trial) -> str:
        """Why a trial is not run, if a smaller batch was already out of memory."""
        return self._limits.implied(trial) if self.prune else ""

    def run_trial(self, planned: Planned, attempts: Attempts) -> Summary | None:
        """Run one trial to its record, if it can be and need be run; None if it was interrupted.

        Raises HostError where the results can no longer be written.
        """
        trial = planned.trial
        with self._own(trial) as folder:
            record = self._begin(planned, folder)
            if planned.unsupported:
                return self._finish(folder, record)
            if reason := self.implied(trial):
                return self._finish(folder, dataclasses.replace(record, status="oom", reason=reason))
            run = attempts.find_largest_batch if trial.find == "max_batch" else attempts.run_with_retries
            attempt, verdict = run(trial, folder, planned.measure), ""
            if trial.find == "parity" and attempt.outcome.status == "ok":
                [verdict] = attempts.judge_parity([folder], planned.measure.timeout_seconds, folder)
            if attempt.outcome.status == "cancelled" or (verdict and attempts.supervisor.signal is not None):
                return None
            return self._finish(folder, record, attempt, verdict)

    def shares(self, planned: Planned) -> bool:
        """True where a trial is measured in a launch with others, and is to be run at all."""
        return bool(planned.trial.warm) and not planned.unsupported and not self.implied(planned.trial)

    def _launch(self, first: Trial, attempts: Attempts, watch: shared_launch.Watch) -> dict[str, Summary]:
        """Run the same repeat of the configurations that share a launch with this one, as many as have room, beside the
        baseline; their records, by id. Of what was interrupted, all have one or none has."""
        totals, known = self.totals(), self.records | self._launched
        asked = [p for p in self.plan.configurations if first.repeat <= totals[p.trial.configuration]]
        asked = [planned for p in asked if self.wanted((planned := p.at(first.repeat)).trial)]
        new = [p for p in asked if self.shares(p) and p.trial.id not in self._launched and not self.kept(p)]
        due = sorted(new, key=lambda planned: planned.trial != first)
        (against, scaling), again = self._held_against(), list[Planned]()
        if self.max_trials is None:
            held = [planned for planned in asked if planned.trial.configuration in against]
            again = shared_launch.again([planned.trial for planned in due], held, known, scaling)
        else:
            due = due[: int(self._left())]
        due = sorted(due + again, key=lambda p: (p.trial != first, p.trial.configuration not in against))
        with contextlib.ExitStack() as opened:
            folders = {p.trial.id: opened.enter_context(self._own(p.trial)) for p in due}
            begun = {p.trial.id: self._begin(p, folders[p.trial.id], False) for p in due}
            own = launch_folders.next_folder(self.folder, known.values())
            record = launch_folders.begin(own, begun.values())
            measures, memory = {planned.trial: planned.measure for planned in due}, self.plan.machine.memory_bytes
            sentinels = {self.plan.sentinel} & {planned.trial.configuration for planned in due} or against
            ok = {each.configuration for each in known.values() if each.status == "ok"}
            seen = {t for t in measures if t.repeat > 1 and t.configuration in ok}
            launch = shared_launch.Launch(
                measures, folders, record, memory, attempts, watch, sentinels, seen,
                gpu_memory_bytes=self.plan.machine.gpu_memory_bytes,
            )  # fmt: skip
            done = launch.measure()
            found, extra = dict[str, Summary](), {planned.trial.id for planned in again}
            for name, attempt in sorted(done.items(), key=lambda item: item[1].outcome.status == "failed"):
                if name in extra and attempt.outcome.status != "ok":
                    continue  # nobody asked for it
                found[name] = self._finish(folders[name], begun[name], attempt)
            record.end()
            self.records |= {name: found.pop(name) for name in extra & found.keys()}
            return found

    def _left(self) -> float:
        """The number of trials that may still be run now."""
        return math.inf if self.max_trials is None else self.max_trials - len(self._finished) - len(self._launched)

    def _gates(self, first: Trial, attempts: Attempts) -> dict[str, Summary]:
        """Run all gates that one launch can run in turn with this one, and judge them in one process; their records, by
        id. What was not ok has none, and is run alone: it may be another's fault."""
        if first.hosts or first.launcher == "srun" or self.max_trials is not None:
            return {}
        here = [gate for gate in self.plan.gates if not (gate.unsupported or gate.trial.hosts)]
        alike = [gate for gate in here if _one_launch(gate.trial) == _one_launch(first)]
        new = [gate for gate in alike if gate.trial.id not in self._tried and not self.kept(gate)]
        due = [gate for gate in new if self.wanted(gate.trial)]
        if len(due) < 2:
            return {}
        self._tried |= {gate.trial.id for gate in due}
        timeout_seconds = max(gate.measure.timeout_seconds for gate in due)
        own = launch_folders.next_folder(self.folder, self.records.values(), "gates-")
        own.mkdir(parents=True)
        with contextlib.ExitStack() as opened:
            folders = [opened.enter_context(self._own(gate.trial)) for gate in due]
            begun = [self._begin(g, each, g is due[0]) for g, each in zip(due, folders, strict=True)]
            trials = [gate.trial for gate in due]
            if launchers.joins_once(first):
                tried = shared_launch.gates_by_one_process(trials, folders, timeout_seconds, own, attempts)
            else:
                tried = attempts.run_together(trials, folders, timeout_seconds, own)
            fine = [at for at, attempt in enumerate(tried) if attempt.outcome.status == "ok"]
            verdicts = attempts.judge_parity([folders[at] for at in fine], timeout_seconds, own) if fine else []
            if attempts.supervisor.signal is not None:
                return {}
            return {
                due[at].trial.id: self._finish(folders[at], begun[at], tried[at], verdict)
                for at, verdict in zip(fine, verdicts, strict=True)
                if (folders[at] / "parity.json").exists()
            }

    @contextlib.contextmanager
    def _own(self, trial: Trial) -> Iterator[Path]:
        """A trial's folder, empty but for what it goes on from. Raises HostError where results cannot be written."""
        folder = self.folder / "trials" / trial.id
        keep = store.OF_A_TRAINING if trial.trained and not self.reset else ()
        try:
            with results.cleared(folder, keep):
                yield folder
        except OSError as error:
            raise results.write_error(self.folder, error) from error

    def _finish(self, folder: Path, record: Record, attempt: Attempt | None = None, verdict: str = "") -> Summary:
        """Write the record with what came of it: from here on the trial is finished.

        Raises OSError, also for a folder that is gone; HostError where it failed as the results cannot be written.
        """
        if attempt:
            record = attempt.completed(record, verdict)
            if record.status == "failed":
                results.raise_if_unwritable(self.folder, attempt.outcome.rank_errors)
        (folder / store.BEGUN).stat()  # or the results were moved, and ranks have made the folder anew
        store.write_record(folder, record)
        return results.summarize(record)

    def _begin(self, planned: Planned, folder: Path, next_up: bool = True) -> Record:
        """Leave what is asked for in the trial's folder; the record that is to be completed."""
        record = self.begun(planned)
        # Where a job is killed with all of its processes, `--collect` finishes what it was about to run, and no other.
        store.write_begun(folder, record if next_up else dataclasses.replace(record, job={}))
        return record

    def begun(self, planned: Planned) -> Record:
        """The record of a trial, but for what is to come of it."""
        trial, job, cluster = planned.trial, hosts.current(), self.plan.cluster
        not_passed = removed_variables(trial, cluster)
        return Record(
            study=self.plan.study.name,
            id=trial.id,
            configuration=trial.configuration,
            trial=trial,
            planned_repeats=planned.measure.repeats,
            status="unsupported" if planned.unsupported else "cancelled",
            reason=planned.unsupported,
            started_at=settings.utc_now(),
            commit=settings.commit(),
            machine=self.plan.machine.to_dict(),
            environment=variables.recorded(os.environ, cluster.environment(trial), not_passed),
            removed_variables=not_passed,
            job=job.to_dict() if job else {},
            command=launchers.command(trial, cluster=cluster).shell(CHECKOUT),  # of any checkout: results travel
            hosts=[str(host) for host in cluster.hosts_of(trial)],
            machine_file=cluster.to_dict(),
            model_code="" if trial.command else models.code_of(trial.model, cluster.models),
        )

    def _learn(self, known: Summary) -> None:
        """Learn from a finished trial which others would be out of memory."""
        ours = known.trial.framework in FRAMEWORKS and known.trial.configuration == known.configuration
        if ours:  # else of a version with other keys: not comparable
            self._limits.learn(known)


def _one_launch(gate: Trial) -> object:
    """Equal for gates that one launch can run in turn: by processes that each forks, or else by the same ones."""
    return groups.processes(gate) if launchers.joins_once(gate) else launchers.alike(gate)
