"""The front door: `python run_sweep.py STUDY`, and `scaling-study doctor`."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from scaling_study import datasets, models, profiling, progress, report, sweep, trial
from scaling_study.errors import HostError, StudyError
from scaling_study.estimate import Estimate
from scaling_study.hosts import allocation, exported
from scaling_study.hosts import hosts as host_names
from scaling_study.launch import detached, inspection
from scaling_study.machine import Machine, this_machine
from scaling_study.processes import process
from scaling_study.quoting import shown_in_any_locale
from scaling_study.records import results as results_folder
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.slurm import collect as slurm_jobs
from scaling_study.slurm import submit as slurm_submit
from scaling_study.study import machine_file, plan, study
from scaling_study.study.cluster import ALONE, Cluster, allocated
from scaling_study.study.machine_file import MachineFile

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
    hosts: Annotated[str, typer.Option(metavar="H:N,…", help="run over these hosts, e.g. h1:2,h2:2")] = "",
    hostfile: Annotated[Path | None, typer.Option(metavar="FILE", help="the same, from a file: `h1 slots=2`")] = None,
    machine: Annotated[str, typer.Option(metavar="NAME|FILE", help="machines/NAME.yaml: network, variables, …")] = "",
    no_prune: Annotated[bool, typer.Option("--no-prune", help="also run batches above one out of memory")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="say only what went wrong")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="go on without this terminal, and say how to look")] = False,
    slurm: Annotated[str | None, typer.Option(metavar="K=V,…", help="submit, e.g. partition=gpu,time=2:00:00")] = None,
    per_trial: Annotated[bool, typer.Option("--per-trial", help="with --slurm: a job for each trial")] = False,
    slurm_print: Annotated[bool, typer.Option("--slurm-print", help="show the batch script, submit nothing")] = False,
    status: Annotated[bool, typer.Option("--status", help="show this study's Slurm jobs")] = False,
    collect: Annotated[bool, typer.Option("--collect", help="record the trials of Slurm jobs that have ended")] = False,
    job: Annotated[Path | None, typer.Option(hidden=True, help="what a job of one trial runs")] = None,
    profile: Annotated[str, typer.Option(metavar="TRIAL", help="only this one, for its traces: in profiles/")] = "",
    doctor: Annotated[bool, typer.Option("--doctor", help="test every framework and launcher on this machine")] = False,
) -> None:
    """Run every trial of STUDY that is not finished yet, then render tables and figures."""
    if doctor:
        from scaling_study import doctor as ward

        raise SystemExit(ward.main(as_json))
    if job:
        from scaling_study.slurm import trial_job

        raise SystemExit(trial_job.run(job, _cluster(hosts, hostfile, machine)))
    if study_file is None:
        raise SystemExit(say_wrong(["which study? For example: python run_sweep.py sweeps.yaml"]))
    try:
        if slurm is not None or slurm_print or status or collect:
            if detach or dry_run or profile:
                raise StudyError(["--detach, --dry-run and --profile do not go with --slurm (see --slurm-print)"])
            asked = slurm_submit.SlurmArguments(slurm or "", per_trial, slurm_print, status, collect, machine)
            cluster = _cluster(hosts, hostfile, machine)
            code = _on_slurm(study_file, asked, small, as_json, where, retry, results, max_trials, cluster)
        elif profile and not dry_run:
            planned = planned_study(study_file, small, dry_run=False, cluster=_cluster(hosts, hostfile, machine))
            code = profiling.front(planned, results, profile)
        elif detach:
            planned = planned_study(study_file, small, dry_run=True, cluster=_cluster(hosts, hostfile, machine))
            code = detached.start(planned, results, dry_run or as_json)
        else:
            cluster = _cluster(hosts, hostfile, machine)
            code = _sweep(
                study_file, dry_run, small, as_json, where, retry, results, max_trials, no_prune, quiet, cluster
            )
    except StudyError as wrong:
        code = say_wrong(wrong.problems)
    except HostError as trouble:
        code = say_wrong(trouble.lines, SOME_FAILED)
    except OSError as error:
        if error.errno == errno.EIO and not error.filename:  # the terminal is closed: nobody is left to be told
            process.fall_silent()
            raise SystemExit(INTERRUPTED) from None
        place = f"{error.filename}: " if error.filename else ""
        code = say_wrong([f"{place}{error.strerror}; what was finished is kept, the same command goes on"], SOME_FAILED)
    raise SystemExit(code)


def _sweep(
    study_file: Path, dry_run: bool, small: bool, as_json: bool, where: str, retry: str, results: Path,
    max_trials: int | None, no_prune: bool, quiet: bool, cluster: Cluster,
) -> int:  # fmt: skip
    console = Console(stderr=as_json, highlight=False)
    planned = planned_study(study_file, small, dry_run, cluster=cluster)
    folder = results / planned.study.name
    job = sweep.Run(planned, folder, _where(where), _statuses(retry), max_trials, prune=not no_prune)
    wanted = _wanted(job, where)
    if dry_run:
        report.plan(console, planned, wanted, folder, as_json)
        return OK
    slurm_submit.refuse_live_jobs(folder)
    with results_folder.locked(folder):
        job.open()
        estimate = Estimate(job.records.values())
        over = [t for t, p in wanted if planned.cluster.of(t) and not p.unsupported and not job.kept(t)]
        for note in inspection.check(planned, over, folder) if over else ():
            console.print(f"Note: {escape(note)}", soft_wrap=True)
        if not quiet:
            report.beforehand(console, planned, wanted, job, estimate)
        with (
            process.listening() as interruption,
            progress.Progress(console, planned, wanted, estimate, quiet or as_json) as display,
        ):
            job.run(display, interruption)
        return _finish(console, job, [t.id for t, _ in wanted], interruption, as_json, quiet)


def _on_slurm(
    study_file: Path, asked: slurm_submit.SlurmArguments, small: bool, as_json: bool, where: str, retry: str,
    results: Path, max_trials: int | None, cluster: Cluster,
) -> int:  # fmt: skip
    """Submit, look or collect."""
    console = Console(stderr=as_json, highlight=False)
    folder = results / study.load(study_file, small).name
    if asked.status:
        return OK if slurm_jobs.show_status(console, folder, as_json) else SOME_FAILED
    if asked.collect:
        return _collect(console, folder)
    request = asked.request(folder, cluster.file)
    if not asked.per_trial:
        planned = planned_study(study_file, small, dry_run=True)
        _wanted(sweep.Run(planned, folder, _where(where), _statuses(retry)), where)
        slurm_submit.submit_sweep(console, request, sys.argv[1:], asked.print_only, as_json)
        return OK
    node, over = asked.nodes(request.options, this_machine())
    cluster = replace(cluster, hosts=over, in_job=True)
    planned = planned_study(study_file, small, asked.print_only, node, cluster)
    job = sweep.Run(planned, folder, _where(where), _statuses(retry), max_trials, prune=False)
    _wanted(job, where)
    slurm_submit.submit_trials(console, request, job, asked.print_only, as_json)
    return OK


def _collect(console: Console, folder: Path) -> int:
    """Record what has ended, and render tables and figures anew."""
    import analysis

    if not (new := slurm_jobs.show_collected(console, folder)):
        return OK
    analysis.write(folder)
    return OK if all(record.status in ("ok", "unsupported") for record in new) else SOME_FAILED


def _wanted(job: sweep.Run, where: str) -> list[tuple[trial.Trial, plan.Planned]]:
    """The certain trials that --where leaves. Raises StudyError if it leaves none."""
    if wanted := [(t, p) for t, p in job.plan.trials() if job.wanted(t.to_dict())]:
        return wanted
    raise StudyError([f"--where {where} matches no trial of {job.plan.study.document.path}"])


def _cluster(hosts: str, hostfile: Path | None, machine: str) -> Cluster:
    """What the options say of hosts and machine file. Raises StudyError."""
    if hosts and hostfile:
        raise StudyError(["--hosts and --hostfile say the same thing; give one"])
    named = host_names.option(hosts) if hosts else host_names.read_file(hostfile) if hostfile else ()
    file = machine_file.load(machine_file.find(machine)) if machine else MachineFile()
    job = allocation.current()
    return Cluster(named or allocated(job), file, tuple(exported.names(os.environ)), in_job=job is not None)


def planned_study(
    study_file: Path, small: bool, dry_run: bool, machine: Machine | None = None, cluster: Cluster = ALONE
) -> plan.Plan:
    """The study on this machine, `data: auto` resolved once for all of it. Raises StudyError or HostError."""
    asked, machine = study.load(study_file, small), machine or this_machine()
    cluster = replace(cluster, hosts=cluster.hosts or asked.hosts)
    planned = plan.make(asked, machine, cluster=cluster)
    asks_for = {p.trial.data for p in planned.configurations}
    if dry_run:
        return plan.make(asked, machine, datasets.found(), cluster)
    asked_of = [(p.trial.data, models.about(p.trial.model).data) for p in planned.configurations]
    needed = {real if said == "auto" else said for said, real in asked_of} - {"synthetic"}
    data = datasets.prepare(sorted(filter(None, needed)))
    for name, one in data.items():
        if name in asks_for and one.name != name:
            raise HostError(f"{study_file} insists on data: {name}, but {one.why}")
    return plan.make(asked, machine, data, cluster)


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
    """`framework=horovod,workers=2` -> {"framework": "horovod", "workers": 2}. Raises StudyError."""
    known, chosen = trial.Trial().to_dict(), {}
    for part in filter(None, text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in known:
            raise StudyError([f"--where {part}: expected key=value with a trial key{study.nearest(key, list(known))}"])
        if key in chosen:
            raise StudyError([f"--where: {key} is given twice"])
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
    if unknown := asked - set(store.STATUSES):
        raise StudyError([f"--retry {', '.join(sorted(unknown))}: a status is one of {', '.join(store.STATUSES)}"])
    return asked


def say_wrong(problems: list[str], code: int = WRONG) -> int:
    for problem in problems:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(problem)}")
    return code


def main() -> None:
    """`scaling-study`: the same as run_sweep.py; `scaling-study doctor` for the doctor."""
    if sys.argv[1:2] == ["doctor"]:
        sys.argv[1] = "--doctor"
    shown_in_any_locale()
    try:
        app()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(OK) from None
