"""A dry run: machine, time and what is skipped first, then the configurations by the keys that vary, then commands.

    sweep: 72 trials of 12 configurations; results: results/sweep
    Machine: 2 cores of ..., 16 GiB, no GPU
    Estimated time: about 14 min 20 s for 72 trials
    Skipped here, 2 of 14 configurations:
      horovod (2): 4 workers need 4 cores, this machine has 2
    Same in all: gradients fp32, launches 6

    framework  model     batch  workers  estimate
    single     resnet8      32        1      48 s

A table that is wider than the console becomes several.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scaling_study import datasets
from scaling_study.commands.progress import clock, cost, describe, kept, telling
from scaling_study.estimate import Estimate
from scaling_study.launch import launchers
from scaling_study.models import NO_MODEL
from scaling_study.study import on_gpus
from scaling_study.study.plan import Plan, Planned
from scaling_study.sweep import Run
from scaling_study.trial import RENAMED, Trial

COLUMNS = ("framework", "model", "batch_per_worker", "workers", "allreduce")
OF_TRAINING = ("model", "batch_per_worker", "allreduce")  # what one that trains nothing does not have
TARGETS = (0.05, 0.02, 0.01)  # margins, whose costs are named
FIRST = ("framework", "model")  # by which rows are divided first
MOST_COMMANDS = 3
MOST_WIDTH = 10_000  # characters of a table
OF_GPUS = (
    "Estimates for GPUs are from one H200, not compiled and not sharded, by the ratio of dense peaks: seconds of a "
    "step within a factor of two, memory within a quarter. Contexts, NCCL and compiling are assumed."
)
Wanted = Sequence[Planned]


class Column(NamedTuple):
    """A column of the table, or one clause of "Same in all" where its cells are alike."""

    title: str
    cells: list[str]
    once: str  # the clause, with {} for the cell
    divides: bool = False  # rows may be divided by it


def as_json(run: Run, wanted: Wanted) -> dict[str, list[dict[str, Any]]]:
    """The trials with their keys, commands and estimates, and why they cannot run here; parity checks apart."""
    estimate = Estimate(run.records.values(), datasets.tree_images, run.plan.machine)
    rows = [
        {**t.to_dict(), "trial": t.id, "command": _command(t, run.plan), "unsupported": p.unsupported}
        | {"estimated_seconds": round(estimate(p), 1), "estimated_gpu_bytes": _gpu_bytes(t)}
        for p in wanted
        for t in (p.trial,)
    ]
    return trials_and_gates(rows)


def trials_and_gates(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of trials, and apart from them those of parity checks."""
    gates = [row for row in rows if row["find"] == "parity"]
    return {"trials": [row for row in rows if row["find"] != "parity"], "gates": gates}


def show(console: Console, run: Run, wanted: Wanted, every_command: bool = False) -> None:
    """Print the plan. `every_command`: each command, and each skipped configuration; else the first few."""
    plan = run.plan
    estimate = Estimate(run.records.values(), datasets.tree_images, plan.machine)
    timed = [planned for planned in wanted if planned.trial.find != "parity"]
    repeats = Counter(planned.trial.configuration for planned in timed)
    seconds = dict.fromkeys(repeats, 0.0)
    for planned in timed:
        seconds[planned.trial.configuration] += estimate(planned)
    configurations = [each for each in plan.configurations if each.trial.configuration in repeats]
    here = [each for each in configurations if not each.unsupported]
    count = f"{len(timed)} trials of {len(configurations)} configurations"
    console.print(f"[bold]{escape(plan.study.name)}[/]: {count}; results: {escape(str(run.folder))}", soft_wrap=True)
    console.print(f"Machine: {escape(str(plan.machine))}")
    left = [planned for planned in wanted if not run.kept(planned)]
    console.print(cost(left, estimate))
    if certainty := _certainty(run, estimate):
        console.print(certainty)
    if finished := kept(len(wanted) - len(left), len(wanted)):
        console.print(finished)
    for line in run.edited_models():
        console.print(escape(line))
    _skipped(console, configurations)
    for note in plan.notes:
        console.print(f"Note: {escape(note)}")
    if any(_gpu_bytes(each.trial) for each in here):
        console.print(OF_GPUS)
    if here:
        facts = {name: (repeats[name], seconds[name]) for name in repeats}
        _configurations(console, here, facts, plan.follows)
    gates = [each.trial for each in wanted if each.trial.find == "parity" and not each.unsupported]
    if counts := Counter(f"{trial.framework} {trial.model}" for trial in gates):
        names = (f"{name} ({count} checks)" if count > 1 else name for name, count in counts.items())
        console.print(f"\nParity checks first, {len(gates)} of them: {escape(', '.join(names))}")
    _commands(console, plan, configurations if every_command else here, every_command)


def _skipped(console: Console, configurations: Wanted) -> None:
    """The configurations that cannot run here, by reason, with their frameworks."""
    reasons: dict[str, Counter[str]] = {}
    for planned in configurations:
        if planned.unsupported:
            reasons.setdefault(planned.unsupported, Counter())[planned.trial.framework] += 1
    if not reasons:
        return
    count = sum(each.total() for each in reasons.values())
    console.print(f"Skipped here, {count} of {len(configurations)} configurations:")
    for reason, frameworks in reasons.items():
        names = ", ".join(f"{name} ({number})" for name, number in frameworks.items())
        console.print(Padding(Text(f"{names}: {reason}"), (0, 0, 0, 2), expand=False))


def _configurations(
    console: Console, rows: Wanted, facts: Mapping[str, tuple[int, float]], follows: Sequence[str], label: str = ""
) -> None:
    """Print the keys that `rows` have in common, and a table of the others.

    A table that is wider than the console becomes several: by framework, by model, then by the key with the fewest
    values. `facts`: launches and seconds of each configuration. `label`: the values by which rows were divided so far.
    """
    columns = _columns(rows, facts, follows)
    several = [column for column in columns if len({*column.cells}) > 1]
    table = Table(box=None, pad_edge=False)
    for column in several:
        right = all(cell[:1].isdigit() for cell in column.cells if cell)
        title = textwrap.wrap(
            column.title.replace("_", " "), max(console.width // 10, *map(len, column.cells)), break_long_words=False
        )
        table.add_column("\n".join(title), justify="right" if right else "left", overflow="fold")
    for cells in zip(*(column.cells for column in several), strict=True):
        table.add_row(*map(escape, cells))
    wide = console.options.update_width(MOST_WIDTH)
    by = sorted((c for c in several if c.divides), key=lambda c: (c.title not in FIRST, len({*c.cells})))
    if by and Measurement.get(console, wide, table).maximum > console.width:
        groups: dict[str, list[Planned]] = {}
        for cell, planned in zip(by[0].cells, rows, strict=True):
            groups.setdefault(cell, []).append(planned)
        for cell, group in groups.items():
            named = cell if by[0].title in FIRST else by[0].once.format(cell)
            _configurations(console, group, facts, follows, ", ".join(filter(None, (label, named))))
        return
    once = [c.once.format(c.cells[0]) for c in columns if len({*c.cells}) == 1 and c.cells[0]]
    once = [
        clause for clause in once if clause.removeprefix("framework ").removeprefix("model ") not in label.split(", ")
    ]
    label = label or ("Same in all" if several else "The configuration")
    console.print(f"\n{escape(label)}: {escape(', '.join(once))}")
    if several:
        console.print(table)


def _columns(rows: Wanted, facts: Mapping[str, tuple[int, float]], follows: Sequence[str]) -> list[Column]:
    """The usual keys and those that tell configurations apart, then launches, estimates and memory."""
    trials = [planned.trial for planned in rows]
    keys = [trial.to_dict() | (dict.fromkeys(OF_TRAINING) if trial.model == NO_MODEL else {}) for trial in trials]
    columns = []
    differ = (name for name in telling(trials) if name != "global_batch")
    for name in dict.fromkeys([*COLUMNS, *differ, *follows]):
        title = "batch" if name == "batch_per_worker" else RENAMED.get(name, name)
        columns.append(Column(title, [_text(own[name]) for own in keys], f"{title} {{}}", divides=True))
    known = [facts[trial.configuration] for trial in trials]
    columns.append(Column("launches", [str(launches) for launches, _ in known], "launches {}"))
    columns.append(Column("estimate", [clock(seconds) for _, seconds in known], "about {} each"))
    sizes = [_gpu_bytes(trial) for trial in trials]
    gib = [f"{size / 2**30:,.1f}" if size else "" for size in sizes]
    return [*columns, Column("GiB a GPU", gib, "{} GiB a GPU")]


def _text(value: Any) -> str:
    """A key's value as a study file has it; empty where it does not apply."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _commands(console: Console, plan: Plan, configurations: Wanted, every: bool) -> None:
    shown = configurations if every else configurations[:MOST_COMMANDS]
    if not shown:
        return
    console.print("\nCommands, one per configuration (the sweep adds --record):")
    for planned in shown:
        if planned.unsupported:
            skipped = escape(f"{describe(planned.trial)}: {planned.unsupported}")
            console.print(f"  [bright_black]skipped: {skipped}[/]", soft_wrap=True)
        else:
            console.print(f"  {escape(_command(planned.trial, plan))}", soft_wrap=True)
    if more := len(configurations) - len(shown):
        console.print(f"  {more} more: --commands")


def _command(trial: Trial, plan: Plan) -> str:
    return launchers.command(trial, cluster=plan.cluster).shell(Path.cwd())


def _gpu_bytes(trial: Trial) -> float | None:
    """Memory of a GPU that a trial takes, by estimate; None on a CPU, and of a model without an estimate."""
    return on_gpus.group_bytes([trial]) if trial.device == "cuda" else None


def _certainty(run: Run, estimate: Estimate) -> str:
    """The cost of narrower intervals, by the spread of finished trials; empty where too few are."""
    planned = {p.trial.configuration: p for p in run.plan.configurations}
    costs = []
    for target in TARGETS:
        if not (counts := run.wanted_for(target)):
            return ""
        seconds = sum(count * estimate(planned[name]) for name, count in counts.items())
        costs.append(f"±{100 * target:g}%: at most {max(counts.values()):,} launches, {clock(seconds)}")
    return f"Margins, by the spread so far of {len(counts)} configurations: {'; '.join(costs)}."
