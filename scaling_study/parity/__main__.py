"""All parity gates of a study, and nothing else: `python -m scaling_study.parity --study FILE`.

The same trials as of `python run_sweep.py FILE --where find=parity`, in the same folder, with a table of all verdicts
at the end. Gates that have passed are kept, and the sweep does not run them again; those that have not are run anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaling_study import cli, sweep
from scaling_study.errors import HostError, StudyError
from scaling_study.processes import process
from scaling_study.progress import describe
from scaling_study.records import results, store
from scaling_study.records.summary import Summary
from scaling_study.study.plan import Plan, Planned
from scaling_study.trial import Trial

USUAL = ("framework", "model", "workers", "allreduce", "precision")
TELLING = (*USUAL, "launcher", "controller", "zero_stage", "accumulation", "device")
WIDTH = 150  # in a log file
AGAIN = frozenset(store.STATUSES) - {"ok", "unsupported"}


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 if every gate that can run here has passed."""
    parser = argparse.ArgumentParser(prog="python -m scaling_study.parity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--study", type=Path, required=True, metavar="FILE")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument("--small", action="store_true", help="apply the study's `small:` overrides")
    asked = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    try:
        plan = cli.planned_study(asked.study, asked.small, False)
        if not plan.gates:
            raise StudyError([f"{asked.study} has no gates: it says parity: false, or nothing in it can run here"])
        return gates(console, plan, asked.results / plan.study.name)
    except StudyError as wrong:
        return cli.say_wrong(wrong.problems)
    except HostError as trouble:
        return cli.say_wrong([str(trouble)], cli.SOME_FAILED)


def gates(console: Console, plan: Plan, folder: Path) -> int:
    """Run what has not passed yet, then show all."""
    with results.locked(folder), process.listening() as interruption:
        job = sweep.Run(plan, folder, {"find": "parity"}, AGAIN)
        job.open()
        job.run(Lines(console), interruption)
    console.print(table(plan, folder, job.records))
    if interruption.signal is not None:
        return cli.INTERRUPTED
    passed = (gate.unsupported or verdict(folder, job.records.get(gate.trial.id))[0] for gate in plan.gates)
    return cli.OK if all(passed) else cli.SOME_FAILED


class Lines:
    """One line a gate, while they run."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def starts(self, trial: Trial, planned: Planned) -> None: ...

    def finished(self, trial: Trial, planned: Planned, record: Summary, again: bool) -> None:
        said = "kept" if again else f"{record.total_seconds or 0:.1f} s"
        self.console.print(f"{describe(trial)}: {escape(record.parity or record.reason)} ({said})", soft_wrap=True)


def table(plan: Plan, folder: Path, known: Mapping[str, Summary]) -> Table:
    """Every gate with its verdict: green for passed, and the figure behind it."""
    rows = [gate.trial.to_dict() for gate in plan.gates]
    columns = [name for name in TELLING if name in USUAL or len({row[name] for row in rows}) > 1]
    shown = Table(title=f"{plan.study.name}: parity with one process of plain PyTorch", title_justify="left", box=None)
    for name in (*columns, "verdict"):
        shown.add_column(name, no_wrap=True)
    shown.add_column("the check that decided", overflow="fold")
    for gate, row in zip(plan.gates, rows, strict=True):
        ok, said, why = verdict(folder, known.get(gate.trial.id))
        cells = ["" if row[name] is None else str(row[name]) for name in columns]
        style = "bright_black" if gate.unsupported else "green" if ok else "bold red"
        shown.add_row(*cells, f"[{style}]{said}[/]", escape(gate.unsupported or why))
    return shown


def verdict(folder: Path, record: Summary | None) -> tuple[bool, str, str]:
    """(whether a gate has passed, that in a word, the check that decided with its figure)."""
    if record is None:
        return False, "not checked", ""
    if record.status == "unsupported":
        return False, "unsupported", record.reason
    try:
        checks = store.load(folder / "trials" / record.id / "parity.json")["checks"]
        deciding = next((check for check in checks if not check["ok"]), checks[-1])
    except (store.UnreadableRecord, IndexError):  # the trial itself failed, or could not be judged
        return False, record.status, record.reason
    passed = record.parity == "passed"
    return passed, "passed" if passed else "failed", f"{deciding['name']}: {deciding['detail']}"


if __name__ == "__main__":
    sys.exit(main())
