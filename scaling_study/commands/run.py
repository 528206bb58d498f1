"""`scaling-study run STUDY`, which is also `python run_sweep.py STUDY`: a sweep, or a look at what it would do."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from scaling_study import datasets
from scaling_study.commands import options, profiling, progress
from scaling_study.commands import slurm as on_slurm
from scaling_study.commands.options import INTERRUPTED, OK, SOME_FAILED, Selection, exit_code
from scaling_study.errors import StudyError
from scaling_study.estimate import Estimate
from scaling_study.launch import inspection
from scaling_study.processes import process
from scaling_study.records import results as results_folder
from scaling_study.settings import CHECKOUT
from scaling_study.slurm import submit
from scaling_study.study.support import Cluster
from scaling_study.sweep import Run

NOT_AGAIN = ("retry", "reset")  # it would run again what is finished
DETACH_IS_GONE = "--detach is gone: start the sweep with nohup, in tmux, or as a Slurm job with --slurm"
NOT_IN_JOB = ("slurm", "per_trial", "slurm_print", "as_json")  # for the process that submits


def run(
    context: typer.Context,
    study: options.StudyIfAny = None,
    dry_run: options.DryRun = False,
    small: options.Small = False,
    where: options.Where = "",
    retry: options.Retry = "",
    max_trials: options.MaxTrials = None,
    no_prune: options.NoPrune = False,
    reset: options.Reset = False,
    profile: options.Profile = "",
    hosts: options.Hosts = "",
    hostfile: options.Hostfile = None,
    machine: options.MachineFileName = "",
    detach: options.Detach = False,
    doctor: options.Doctor = False,
    print_environment: options.PrintEnvironment = False,
    results: options.Results = Path("results"),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_report: options.NoReport = False,
    slurm: options.SlurmSubmit = None,
    per_trial: options.PerTrial = False,
    slurm_print: options.SlurmPrint = False,
    status: options.Status = False,
    collect: options.Collect = False,
    job: options.JobOfTrial = None,
) -> int:
    """Run every trial of STUDY that is not finished yet, then write tables and figures."""
    if doctor:
        from scaling_study.commands import doctor as diagnosis

        return diagnosis.main(as_json)
    if print_environment:
        from scaling_study.commands import doctor as environment

        return environment.print_environment()
    selection = Selection(study or Path(), small, where, retry, results, max_trials)
    in_jobs = slurm is not None or slurm_print or status or collect

    def command() -> int:
        cluster = options.cluster_from(hosts, hostfile, machine)
        if job:
            return submit.run(job, cluster)
        if study is None:
            raise StudyError(["which study? For example: python run_sweep.py sweeps.yaml"])
        if detach:
            raise StudyError([DETACH_IS_GONE])
        if in_jobs and (dry_run or profile):
            raise StudyError(["--dry-run and --profile do not go with --slurm (see --slurm-print)"])
        if status:
            return on_slurm.show_status(selection, as_json)
        if collect:
            return on_slurm.collect(selection)
        if in_jobs:
            asked = submit.SlurmArguments(slurm or "", per_trial, slurm_print, status, collect, machine)
            words = options.words_again(context, NOT_IN_JOB)
            return on_slurm.submit(selection, asked, cluster, words, as_json)
        if profile and not dry_run:
            planned = options.planned_study(study, small, dry_run=False, cluster=cluster)
            return profiling.front(planned, results, profile)
        if dry_run:
            return show_plan(selection, cluster, as_json)
        again = options.shell_line(options.words_again(context, NOT_AGAIN), CHECKOUT / "run_sweep.py")
        return start_sweep(selection, cluster, again, not no_prune, as_json, quiet, reset, no_report)

    return exit_code(command)


def show_plan(selection: Selection, cluster: Cluster, as_json: bool) -> int:
    """What a sweep of these trials would do. Raises StudyError."""
    planned = options.planned_study(selection.study_file, selection.small, dry_run=True, cluster=cluster)
    run, selected = selection.select(planned, prune=False)
    run.records = results_folder.finished(run.folder).records
    progress.plan(Console(stderr=as_json, highlight=False), run, selected, as_json)
    return OK


def start_sweep(
    selection: Selection, cluster: Cluster, again: str, prune: bool, as_json: bool, quiet: bool, reset: bool = False,
    no_report: bool = False,
) -> int:  # fmt: skip
    """Run what is not finished, then analyse; the exit code. `again`: the command line that continues.

    Raises StudyError or HostError.
    """
    console = Console(stderr=as_json, highlight=False)
    planned = options.planned_study(selection.study_file, selection.small, dry_run=False, cluster=cluster)
    run, selected = selection.select(planned, prune)
    run.reset = reset
    submit.refuse_live_jobs(run.folder)
    with results_folder.locked(run.folder):
        run.open()
        estimate = Estimate(run.records.values(), datasets.tree_images)
        remote = [t for t, p in selected if planned.cluster.hosts_of(t) and not p.unsupported and not run.kept(t)]
        for note in inspection.inspect_hosts(planned, remote, run.folder) if remote else ():
            console.print(f"Note: {escape(note)}", soft_wrap=True)
        if not quiet:
            progress.print_before(console, planned, selected, run, estimate)
        with (
            process.Interruption() as interruption,
            progress.Progress(console, planned, selected, estimate, quiet or as_json, run.folder) as display,
        ):
            run.run(display, interruption)
        ids = [trial.id for trial, _ in selected]
        return _finish(console, run, ids, interruption, again, as_json, quiet, no_report)


def _finish(
    console: Console, run: Run, selected: list[str], interruption: process.Interruption, again: str, as_json: bool,
    quiet: bool, no_report: bool,
) -> int:  # fmt: skip
    """Analysis, the last lines, the exit code."""
    if interruption.signal is not None:
        results_folder.note_end(run.folder, run.plan, interruption.signal.name)
    elif all(trial.id in run.records for trial, _ in run.plan.trials()):
        results_folder.note_end(run.folder, run.plan, "")
    if not no_report:
        options.render(run.folder, None if quiet or as_json else console)
    current = {p.trial.configuration for p in (*run.plan.configurations, *run.plan.gates)}  # not before an edit
    current |= {*run.plan.alone}
    records = [r for r in run.records.values() if r.configuration in current and run.wanted(r.trial)]
    if as_json:
        rows = [progress.row(record) for record in records]
        gates = [row for row in rows if row["find"] == "parity"]
        trials = [row for row in rows if row not in gates]
        print(json.dumps({"results": str(run.folder), "trials": trials, "gates": gates}))
    progress.print_after(console, run, records, selected, interruption, again, quiet, no_report)
    if interruption.signal is not None:
        return INTERRUPTED
    return SOME_FAILED if any(r.status not in ("ok", "unsupported") and not r.implied for r in records) else OK
