"""The front door: `python run_sweep.py STUDY`, and `scaling-study doctor`."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from scaling_study import datasets, detached, plan, process, progress, records, report, study, sweep, trial
from scaling_study import results as results_folder
from scaling_study.errors import Problems, Trouble
from scaling_study.estimate import Estimate
from scaling_study.machine import this_machine
from scaling_study.models import MODELS
from scaling_study.settings import CHECKOUT

OK, SOME_FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130  # exit codes
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def run(
    study_file: Annotated[Path | None, typer.Argument(metavar="STUDY", help="the study file")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the plan and start nothing")] = False,
    small: Annotated[bool, typer.Option("--small", help="apply the study's `small:` overrides")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for scripts instead of tables")] = False,
    where: Annotated[str, typer.Option(metavar="K=V,…", help="run only the trials whose keys match")] = "",
    retry: Annotated[str, typer.Option(metavar="STATUS,…", help="run trials of this status again, e.g. failed")] = "",
    results: Annotated[Path, typer.Option(metavar="DIR", help="results land in DIR/<study>")] = Path("results"),
    max_trials: Annotated[int | None, typer.Option(min=0, help="run at most this many trials now")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="say only what went wrong")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="go on without this terminal, and say how to look")] = False,
    doctor: Annotated[bool, typer.Option("--doctor", help="test every framework and launcher on this machine")] = False,
) -> None:
    """Run every trial of STUDY that is not finished yet, then render tables and figures."""
    if doctor:
        from scaling_study import doctor as ward

        raise SystemExit(ward.main(as_json))
    if study_file is None:
        raise SystemExit(say_wrong(["which study? For example: python run_sweep.py sweeps.yaml"]))
    try:
        if detach:
            code = detached.start(planned_study(study_file, small, dry_run=True), results, dry_run or as_json)
        else:
            code = _sweep(study_file, dry_run, small, as_json, where, retry, results, max_trials, quiet)
    except Problems as wrong:
        code = say_wrong(wrong.problems)
    except Trouble as trouble:
        code = say_wrong([str(trouble)], SOME_FAILED)
    except OSError as error:
        if error.errno == errno.EIO and not error.filename:  # the terminal is closed: nobody is left to be told
            process.fall_silent()
            raise SystemExit(INTERRUPTED) from None
        place = f"{error.filename}: " if error.filename else ""
        code = say_wrong([f"{place}{error.strerror}; what was finished is kept, the same command goes on"], SOME_FAILED)
    raise SystemExit(code)


def _sweep(
    study_file: Path, dry_run: bool, small: bool, as_json: bool, where: str, retry: str, results: Path,
    max_trials: int | None, quiet: bool,
) -> int:  # fmt: skip
    console = Console(stderr=as_json, highlight=False)
    planned = planned_study(study_file, small, dry_run)
    folder = results / planned.study.name
    job = sweep.Run(planned, folder, where=_where(where), retry=_statuses(retry), max_trials=max_trials)
    wanted = [(t, p) for t, p in planned.trials() if job.wanted(t.to_dict())]
    if not wanted:
        raise Problems([f"--where {where} matches no trial of {study_file}"])
    if dry_run:
        report.plan(console, planned, wanted, folder, as_json)
        return OK
    with results_folder.locked(folder):
        job.records = results_folder.open_results(folder, planned)
        estimate = Estimate(job.records.values())
        if not quiet:
            report.beforehand(console, planned, wanted, job, estimate)
        with (
            process.listening() as interruption,
            progress.Progress(console, planned, wanted, estimate, quiet or as_json) as display,
        ):
            job.run(display, interruption)
        return _finish(console, job, [t.id for t, _ in wanted], interruption, as_json, quiet)


def planned_study(study_file: Path, small: bool, dry_run: bool) -> plan.Plan:
    """The study on this machine, `data: auto` resolved once for all of it. Raises Problems or Trouble."""
    asked, machine = study.load(study_file, small), this_machine()
    planned = plan.make(asked, machine)
    asks_for = {p.trial.data for p in planned.configurations}
    if dry_run:
        return plan.make(asked, machine, datasets.found())
    asked_of = [(p.trial.data, MODELS[p.trial.model].data) for p in planned.configurations]
    needed = {real if said == "auto" else said for said, real in asked_of} - {"synthetic"}
    data = datasets.prepare(sorted(filter(None, needed)))
    for name, one in data.items():
        if name in asks_for and one.name != name:
            raise Trouble(f"{study_file} insists on data: {name}, but {one.why}")
    return plan.make(asked, machine, data)


def _finish(
    console: Console, job: sweep.Run, wanted: list[str], interruption: process.Interruption, as_json: bool, quiet: bool
) -> int:
    """Analysis, the last words, the exit code."""
    import analysis

    analysis.write(job.folder)
    everything = (*job.plan.configurations, *job.plan.gates)
    planned = {p.trial.configuration for p in everything}  # not what the study was before an edit
    mine = [r for r in job.records.values() if r.configuration in planned and job.wanted(r.trial)]
    if as_json:
        rows = [report.row(r) for r in mine]
        gates = [row for row in rows if row["find"] == "parity"]
        print(json.dumps({"results": str(job.folder), "trials": [r for r in rows if r not in gates], "gates": gates}))
    elif not quiet:
        analysis.print_tables(job.folder, console)
    report.afterwards(console, job, mine, wanted, interruption, _this_command(), quiet)
    if interruption.signal is not None:
        return INTERRUPTED
    implied = [r for r in mine if r.status == "oom" and r.reason.startswith("implied")]
    bad = [r for r in mine if r.status not in ("ok", "unsupported") and r not in implied]
    return SOME_FAILED if bad else OK


def _this_command() -> str:
    """The command line to go on with: this one, without --retry, which would run again what is finished."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word == "--retry":
            next(words, None)
        elif not word.startswith("--retry="):
            kept.append(word)
    return shlex.join(["python", os.path.relpath(CHECKOUT / "run_sweep.py"), *kept])


def _where(text: str) -> dict[str, Any]:
    """`framework=horovod,workers=2` -> {"framework": "horovod", "workers": 2}. Raises Problems."""
    known, chosen = trial.Trial().to_dict(), {}
    for part in filter(None, text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in known:
            raise Problems([f"--where {part}: expected key=value with a trial key{study.nearest(key, list(known))}"])
        chosen[key] = _typed(value)
    return chosen


def _typed(word: str) -> Any:
    """A command line's word as the value it stands for: 2, 0.001, true, or itself."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(word)
    return {"true": True, "false": False, "": None}.get(word.lower(), word)


def _statuses(text: str) -> frozenset[str]:
    asked = frozenset(filter(None, text.split(",")))
    if unknown := asked - set(records.STATUSES):
        raise Problems([f"--retry {', '.join(sorted(unknown))}: a status is one of {', '.join(records.STATUSES)}"])
    return asked


def say_wrong(problems: list[str], code: int = WRONG) -> int:
    for problem in problems:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(problem)}")
    return code


def main() -> None:
    """`scaling-study`: the same as run_sweep.py; `scaling-study doctor` for the doctor."""
    if sys.argv[1:2] == ["doctor"]:
        sys.argv[1] = "--doctor"
    try:
        app()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(OK) from None
