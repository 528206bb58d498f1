"""What the driver prints before and after a sweep, and the plan of a dry run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaling_study import datasets
from scaling_study.estimate import Estimate
from scaling_study.launch import launchers
from scaling_study.models import NO_MODEL
from scaling_study.processes.process import Interruption
from scaling_study.progress import clock, describe
from scaling_study.records.summary import Summary
from scaling_study.stats.intervals import FEWEST_REPEATS
from scaling_study.study.plan import Plan, Planned
from scaling_study.sweep import Run
from scaling_study.trial import Trial

COLUMNS = ("framework", "model", "batch_per_worker", "workers", "allreduce")
NUMBERS = ("batch_per_worker", "workers")
OF_TRAINING = ("model", "batch_per_worker", "allreduce")  # what one that trains nothing does not have
TARGETS = (0.05, 0.02, 0.01)  # half of a 95 % interval, whose costs a dry run names
Wanted = Sequence[tuple[Trial, Planned]]


def plan(console: Console, run: Run, wanted: Wanted, as_json: bool) -> None:
    """A dry run: every configuration with the command that runs it, what is skipped and why, how long it takes."""
    plan = run.plan
    if as_json:
        rows = [
            {**t.to_dict(), "trial": t.id, "command": _command(t, plan), "unsupported": p.unsupported}
            for t, p in wanted
        ]
        trials = [row for row in rows if row["find"] != "parity"]
        print(json.dumps({"trials": trials, "gates": [row for row in rows if row["find"] == "parity"]}))
        return
    estimate, everything = Estimate(run.records.values(), datasets.tree_images), wanted
    gates, wanted = [(t, p) for t, p in wanted if t.find == "parity"], [(t, p) for t, p in wanted if t.find != "parity"]
    repeats = Counter(trial.configuration for trial, _ in wanted)
    configurations = [(p.trial, p) for p in plan.configurations if p.trial.configuration in repeats]
    columns = _telling([trial for trial, _ in configurations])
    title = escape(f"{plan.study.name}: {len(wanted)} trials in {run.folder}")
    table = Table(title=title, title_justify="left", box=None)
    for title in (*columns, "repeats", "estimate"):
        table.add_column(title, justify="left" if title in COLUMNS and title not in NUMBERS else "right")
    for trial, planned in configurations:
        times = repeats[trial.configuration]
        known = "" if planned.unsupported else clock(times * estimate(trial, planned))
        keys = trial.to_dict() | (dict.fromkeys(OF_TRAINING) if trial.model == NO_MODEL else {})
        cells = ["" if keys[name] is None else escape(str(keys[name])) for name in columns]
        table.add_row(*cells, str(times), known, style="bright_black" if planned.unsupported else "")
    console.print(table)
    console.print("\nCommands, one per configuration (the sweep adds --record):")
    for trial, planned in configurations:
        if planned.unsupported:
            console.print(
                f"  [bright_black]skipped: {escape(f'{describe(trial)}: {planned.unsupported}')}[/]", soft_wrap=True
            )
        else:
            console.print(f"  {escape(_command(trial, plan))}", soft_wrap=True)
    if gates:
        names = dict.fromkeys(f"{t.framework} {t.model}" for t, p in gates if not p.unsupported)
        console.print(f"\nParity first, {len(names)} gates: {', '.join(names)}", soft_wrap=True)
    console.print(f"\nMachine: {escape(str(plan.machine))}")
    for note in plan.notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)
    console.print(_cost(everything, estimate))
    if certainty := _certainty(run, estimate):
        console.print(certainty, soft_wrap=True)


def print_before(console: Console, plan: Plan, wanted: Wanted, job: Run, estimate: Estimate) -> None:
    """One paragraph before the first trial."""
    left = [(t, p) for t, p in wanted if not job.kept(t)]
    console.print(f"[bold]{plan.study.name}[/] on {escape(str(plan.machine))}", soft_wrap=True)
    for line in job.edits:
        console.print(escape(line), soft_wrap=True)
    for note in plan.notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)
    if len(left) < len(wanted):
        console.print(f"{len(wanted) - len(left)} of {len(wanted)} trials are already finished and kept.")
    to_run = [(t, p) for t, p in left if p.unsupported or not job.implied(t)]
    if len(to_run) < len(left):
        pruned = len(left) - len(to_run)
        console.print(f"Skipped because a smaller batch ran out of memory: {pruned} (--no-prune runs them).")
    console.print(_cost(to_run, estimate), soft_wrap=True)


def print_after(
    console: Console, job: Run, mine: Sequence[Summary], wanted: Sequence[str], interruption: Interruption, again: str,
    quiet: bool, no_report: bool = False,
) -> None:  # fmt: skip
    """What went wrong, where everything is, how to go on."""
    for (status, reason), group in _grouped(mine).items():
        if status != "unsupported":  # the tables list those, with their reasons
            more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
            log = f"its log: {_log(job.folder, group[0])}"
            where = "not run; --no-prune runs it" if group[0].implied else log
            console.print(
                f"[bold]{status}[/]: {escape(group[0].id)}{more}: {escape(reason)}; {escape(where)}", soft_wrap=True
            )
    open_ = [id for id in wanted if id not in job.records]
    if interruption.signal is not None or open_:
        why = f"Stopped by {interruption.signal.name}" if interruption.signal is not None else "Stopped at --max-trials"
        console.print(f"{why}; {len(mine)} finished trials are kept, {len(open_)} remain.")
        console.print(f"To resume: {escape(again)}", soft_wrap=True)
    if not quiet:
        later = f"Records: {job.folder}/; tables and figures of them: python -m analysis {job.folder}"
        there = f"Tables, figures and records: {job.folder}/"
        console.print(escape(later if no_report else there), soft_wrap=True)


def row(record: Summary) -> dict[str, Any]:
    """One trial for --json."""
    outcome = {"trial": record.id, "status": record.status, "reason": record.reason}
    return {**record.trial, **outcome, "samples_per_second": record.samples_per_second}


def _log(results: Path, record: Summary) -> Path:
    """Of its own processes (a gate's too, which shared its launch), of the launch with others in which it failed, or by
    itself after that."""
    trial = results / "trials" / record.id
    if (shared := results / "launches" / record.launch / "log.txt").exists() and record.launch:
        return own if (own := trial / "log.txt").exists() else shared
    return alone if (alone := trial / "alone" / "log.txt").exists() else trial / "log.txt"


def _grouped(records: Sequence[Summary]) -> dict[tuple[str, str], list[Summary]]:
    groups: dict[tuple[str, str], list[Summary]] = {}
    for record in records:
        if record.status != "ok":
            groups.setdefault((record.status, record.reason), []).append(record)
    return groups


def _command(trial: Trial, plan: Plan) -> str:
    return launchers.command(trial, cluster=plan.cluster).shell(Path.cwd())


def _telling(trials: Sequence[Trial]) -> list[str]:
    """The usual keys, and every other one in which two trials of a framework differ: unlike rows must look unlike."""
    values: dict[str, dict[str, set[Any]]] = {}  # key -> framework -> what its trials have
    for trial in trials:
        for name, value in trial.to_dict().items():
            values.setdefault(name, {}).setdefault(trial.framework, set()).add(value)
    differ = [name for name, by in values.items() if any(len(distinct) > 1 for distinct in by.values())]
    return [*COLUMNS, *(name for name in differ if name not in (*COLUMNS, "global_batch"))]


def _certainty(run: Run, estimate: Estimate) -> str:
    """What narrower intervals would cost, by the spread of what is finished; empty where too little is."""
    planned = {p.trial.configuration: p for p in run.plan.configurations}
    costs = []
    for target in TARGETS:
        if not (counts := run.wanted_for(target)):
            return ""
        seconds = sum(count * estimate(planned[name].trial, planned[name]) for name, count in counts.items())
        costs.append(f"±{100 * target:g}%: at most {max(counts.values()):,} repeats, {clock(seconds)}")
    return f"By the spread so far, of {len(counts)} configurations: {'; '.join(costs)}."


def _cost(wanted: Wanted, estimate: Estimate) -> str:
    """The estimated time, and what repeats for the target interval could add."""
    seconds = sum(estimate(trial, planned) for trial, planned in wanted)
    runnable = {p.trial.configuration: p for _, p in wanted if not p.unsupported and p.trial.model != NO_MODEL}
    widened = [p for p in runnable.values() if p.measure.repeats >= FEWEST_REPEATS]  # of fewer no spread is known
    most = sum(estimate(p.trial, p) * (p.measure.max_repeats - p.measure.repeats) for p in widened)
    cost = f"Estimated time: about {clock(seconds)} for {len(wanted)} trials"
    if most:
        target = min(p.measure.target_interval for p in widened)
        cost += f", up to {clock(most)} more for repeats while intervals are wider than ±{100 * target:g}%"
    return f"{cost}."
