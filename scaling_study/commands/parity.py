"""`scaling-study parity STUDY`, which is also `python -m scaling_study.parity --study STUDY`: a study's parity checks.

The same trials as of `python run_sweep.py STUDY --where find=parity`, in the same folder, with a table of all verdicts
at the end. Gates that have passed are kept, and the sweep does not run them again; those that have not are run anew.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scaling_study import sweep
from scaling_study.commands import options
from scaling_study.commands.options import INTERRUPTED, OK, SOME_FAILED, exit_code
from scaling_study.commands.progress import describe
from scaling_study.errors import StudyError
from scaling_study.launch.shared_launch import Watch
from scaling_study.processes import process
from scaling_study.records import results as results_folder
from scaling_study.records import schema, store
from scaling_study.records.results import Summary
from scaling_study.slurm import submit
from scaling_study.study import support
from scaling_study.study.plan import Plan, Planned
from scaling_study.trial import RENAMED

USUAL = ("framework", "model", "workers", "allreduce", "precision")
SHARDS = ("zero_stage", "shard_group", "reduce_scatter")
TELLING = (*USUAL, "launcher", "controller", *SHARDS, "accumulation", "device", "compared with")
WIDTH = 150  # in a log file
AGAIN = frozenset(schema.STATUSES) - {"ok", "unsupported"}


def parity(
    study: options.StudyIfAny = None,
    study_option: Annotated[Path | None, typer.Option("--study", metavar="FILE", help="The study file.")] = None,
    results: options.Results = Path("results"),
    small: options.Small = False,
) -> int:
    """Check that each framework of STUDY trains what one process trains, and run nothing else.

    Exit codes: 0 each check that can run here passed; 1 one did not; 2 the study is wrong; 130 stopped.
    """
    return exit_code(lambda: run_gates(study or study_option, small, results))


def run_gates(study_file: Path | None, small: bool, results: Path) -> int:
    """The exit code: OK if every gate that can run here has passed. Raises StudyError or HostError."""
    if study_file is None:
        raise StudyError(["which study? For example: scaling-study parity sweeps.yaml"])
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    plan = options.Selection(study_file, options.Trials(small)).planned(dry_run=False)
    if not plan.gates:
        raise StudyError([f"{study_file} has no parity checks: it says parity: false, or no trial of it can run here"])
    folder = results / plan.study.name
    submit.refuse_live_jobs(folder)
    with results_folder.locked(folder), process.Interruption() as interruption:
        run = sweep.Run(plan, folder, {"find": "parity"}, AGAIN)
        run.open()
        run.run(Lines(console), interruption)
    console.print(verdicts(plan, folder, run.records))
    if interruption.signal is not None:
        return INTERRUPTED
    passed = (gate.unsupported or verdict(folder, run.records.get(gate.trial.id))[0] for gate in plan.gates)
    return OK if all(passed) else SOME_FAILED


class Lines(Watch):
    """One line a gate, while they run."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def finished(self, planned: Planned, record: Summary, again: bool) -> None:
        duration = "kept" if again else f"{record.total_seconds or 0:.1f} s"
        said = f"{describe(planned.trial)}: {escape(record.parity or record.reason)} ({duration})"
        self.console.print(said, soft_wrap=True)


def verdicts(plan: Plan, folder: Path, known: Mapping[str, Summary]) -> Table:
    """The gates with their verdicts: green for passed, and the figure behind it."""
    rows = [{**gate.trial.to_dict(), "compared with": support.reference_of(vars(gate.trial))} for gate in plan.gates]
    columns = [name for name in TELLING if name in USUAL or len({row[name] for row in rows}) > 1]
    shown = Table(title=f"{plan.study.name}: parity with one process of plain PyTorch", title_justify="left", box=None)
    for name in (*columns, "verdict"):
        shown.add_column(RENAMED.get(name, name), no_wrap=True)
    shown.add_column("the check that decided", overflow="fold")
    for gate, row in zip(plan.gates, rows, strict=True):
        ok, word, why = verdict(folder, known.get(gate.trial.id))
        cells = ["" if row[name] is None else str(row[name]) for name in columns]
        style = "bright_black" if gate.unsupported else "green" if ok else "bold red"
        shown.add_row(*cells, f"[{style}]{word}[/]", escape(gate.unsupported or why))
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
