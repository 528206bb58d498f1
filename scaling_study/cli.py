"""The front door: `python run_sweep.py STUDY`, and `scaling-study doctor`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from scaling_study import datasets, plan, process, progress, records, report, study, sweep, trial
from scaling_study.errors import Problems, Trouble
from scaling_study.estimate import Estimate
from scaling_study.machine import this_machine

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
    doctor: Annotated[bool, typer.Option("--doctor", help="test every framework and launcher on this machine")] = False,
) -> None:
    """Run every trial of STUDY that is not finished yet, then render tables and figures."""
    if doctor:
        from scaling_study import doctor as ward

        raise SystemExit(ward.main(as_json))
    if study_file is None:
        raise SystemExit(_wrong(["which study? For example: python run_sweep.py sweeps.yaml"]))
    try:
        code = _sweep(study_file, dry_run, small, as_json, where, retry, results, max_trials, quiet)
    except Problems as wrong:
        code = _wrong(wrong.problems)
    except Trouble as trouble:
        code = _wrong([str(trouble)], SOME_FAILED)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        code = _wrong([f"{place}{error.strerror}; what was finished is kept, the same command goes on"], SOME_FAILED)
    raise SystemExit(code)


def _sweep(
    study_file: Path, dry_run: bool, small: bool, as_json: bool, where: str, retry: str, results: Path,
    max_trials: int | None, quiet: bool,
) -> int:  # fmt: skip
    console = Console(stderr=as_json, highlight=False)
    asked, machine = study.load(study_file, small), this_machine()
    selected, statuses = _where(where), _statuses(retry)
    data = None
    if any(sweep_.fixed.get("data", "auto") == "auto" for sweep_ in asked.sweeps):
        data = datasets.found() if dry_run else datasets.prepare()
    planned = plan.make(asked, machine, data)
    if not dry_run and any(p.trial.data == "cifar10" for p in planned.configurations):
        data = data or datasets.prepare()
        if data.name != "cifar10":
            raise Trouble(f"{study_file} insists on data: cifar10, but {data.why}")
    job = sweep.Sweep(planned, results / asked.name, where=selected, retry=statuses, max_trials=max_trials)
    wanted = [entry for entry in planned.trials() if job.wanted(entry[0])]
    if not wanted:
        raise Problems([f"--where {where} matches no trial of {study_file}"])
    if dry_run:
        report.plan(console, planned, wanted, results / asked.name, as_json)
        return OK
    with sweep.locked(job.results):
        job.records = sweep.open_results(job.results, planned)
        estimate = Estimate(job.records.values())
        if not quiet:
            report.beforehand(console, planned, wanted, job, estimate)
        with (
            process.listening() as interruption,
            progress.Progress(console, planned, wanted, estimate, quiet or as_json) as display,
        ):
            job.run(display, interruption)
        return _finish(console, job, [t.id for t, _ in wanted], interruption, as_json, quiet, study_file)


def _finish(
    console: Console, job: sweep.Sweep, wanted: list[str], interruption: process.Interruption, as_json: bool,
    quiet: bool, study_file: Path,
) -> int:  # fmt: skip
    """Analysis, the last words, the exit code."""
    import analysis

    analysis.write(job.results)
    mine = [r for r in job.records.values() if job.wanted(trial.Trial(**_keys(r)))]
    if as_json:
        print(json.dumps({"results": str(job.results), "trials": [report.row(r) for r in mine]}))
    elif not quiet:
        analysis.print_tables(job.results, console)
    report.afterwards(console, job, mine, wanted, interruption, study_file, quiet)
    if interruption.signal is not None:
        return INTERRUPTED
    implied = [r for r in mine if r.status == "oom" and r.reason.startswith("implied")]
    bad = [r for r in mine if r.status not in ("ok", "unsupported") and r not in implied]
    return SOME_FAILED if bad else OK


def _keys(record: records.Record) -> dict[str, Any]:
    return {k: v for k, v in record.trial.items() if k != "global_batch"}


def _where(text: str) -> dict[str, Any]:
    """`framework=horovod,workers=2` -> {"framework": "horovod", "workers": 2}. Raises Problems."""
    import yaml

    known = list(trial.Trial().to_dict())
    chosen = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key.strip() not in known:
            raise Problems([f"--where {part}: expected key=value with a trial key{study.nearest(key.strip(), known)}"])
        chosen[key.strip()] = yaml.safe_load(value)
    return chosen


def _statuses(text: str) -> frozenset[str]:
    asked = frozenset(filter(None, text.split(",")))
    if unknown := asked - set(records.STATUSES):
        raise Problems([f"--retry {', '.join(sorted(unknown))}: a status is one of {', '.join(records.STATUSES)}"])
    return asked


def _wrong(problems: list[str], code: int = WRONG) -> int:
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
