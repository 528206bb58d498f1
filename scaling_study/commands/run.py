"""`scaling-study run STUDY`, which is also `python run_sweep.py STUDY`: a sweep, or a look at what it would do."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from scaling_study import datasets
from scaling_study.commands import doctor, dry_run, options, profiling, progress
from scaling_study.commands import slurm as on_slurm
from scaling_study.commands.options import HOSTS, OUTPUT, SLURM, TRIALS, PlaceOptions, Selection, Trials, flag, option
from scaling_study.errors import StudyError
from scaling_study.estimate import Estimate
from scaling_study.launch import inspection
from scaling_study.processes import process
from scaling_study.records import results as results_folder
from scaling_study.settings import CHECKOUT
from scaling_study.slurm import submit
from scaling_study.study.plan import Planned
from scaling_study.study.support import Cluster
from scaling_study.sweep import Run

COMMANDS = "Show the plan with the command of each configuration, and start nothing."
ENVIRONMENT = "Print the versions, launchers and variables of this machine, as JSON."
SUBMIT = "Submit a job with these options of sbatch, e.g. partition=gpu,time=2:00:00."
NOT_AGAIN = ("retry", "reset")  # they would run again what this run has finished
NOT_IN_JOB = ("slurm", "per_trial", "slurm_print", "as_json")  # for the process that submits


@dataclass(frozen=True)
class How:
    """Options of the trials that are run."""

    no_prune: Annotated[bool, flag("--no-prune", "Also run batches above one that ran out of memory.", TRIALS)] = False
    reset: Annotated[bool, flag("--reset", "Start trainings from step 0; ignore their checkpoints.", TRIALS)] = False
    profile: Annotated[str, option("TRIAL", "Profile only this trial; its traces go to profiles/.", TRIALS)] = ""


@dataclass(frozen=True)
class Instead:
    """Options that ask for something else than a sweep."""

    detach: Annotated[bool, typer.Option("--detach", hidden=True, help="Removed: its error says what to do.")] = False
    doctor: Annotated[bool, flag("--doctor", "Try every framework and launcher on this machine.", HOSTS)] = False
    print_environment: Annotated[bool, flag("--print-environment", ENVIRONMENT, HOSTS)] = False


@dataclass(frozen=True)
class Output:
    """The form of the output."""

    as_json: options.Json = False
    quiet: Annotated[bool, flag("--quiet", "Print only errors.", OUTPUT, "-q")] = False
    no_report: Annotated[bool, flag("--no-report", "Run trials only: write no tables and no figures.", OUTPUT)] = False


@dataclass(frozen=True)
class Slurm:
    """Jobs of Slurm: to submit, to show, to collect; or the job that this process runs in."""

    slurm: Annotated[str | None, option("K=V,…", SUBMIT, SLURM)] = None
    per_trial: options.PerTrial = False
    slurm_print: Annotated[bool, flag("--slurm-print", "Show the batch script, submit nothing.", SLURM)] = False
    status: Annotated[bool, flag("--status", "Show this study's Slurm jobs.", SLURM)] = False
    collect: Annotated[bool, flag("--collect", "Record the trials of Slurm jobs that have ended.", SLURM)] = False
    job: Annotated[Path | None, typer.Option("--job", hidden=True, help="Run the trial of this Slurm job.")] = None

    @property
    def asked(self) -> bool:
        return self.slurm is not None or self.slurm_print or self.status or self.collect


@options.grouped
def run(
    context: typer.Context,
    *,
    study: options.StudyIfAny = None,
    plan_only: Annotated[bool, flag("--dry-run", "Show the plan and start nothing.", TRIALS)] = False,
    commands: Annotated[bool, flag("--commands", COMMANDS, TRIALS)] = False,
    trials: Trials,
    how: How,
    place: PlaceOptions,
    instead: Instead,
    results: options.Results = Path("results"),
    output: Output,
    jobs: Slurm,
) -> int:
    """Run every trial of STUDY that is not finished yet, then write tables and figures.

    Exit codes: 0 done; 1 a trial failed; 2 the study or the command line is wrong; 130 stopped: the same command
    resumes.
    """
    if instead.doctor:
        return doctor.main(output.as_json)
    if instead.print_environment:
        return doctor.print_environment()

    def command() -> int:
        cluster = place.cluster()
        if jobs.job:
            return submit.run(jobs.job, cluster)
        if study is None:
            raise StudyError(["which study? For example: scaling-study run sweeps.yaml"])
        if instead.detach:
            raise StudyError(["--detach is gone: start the sweep with nohup, in tmux, or as a Slurm job with --slurm"])
        if jobs.asked and (plan_only or commands or how.profile):
            raise StudyError(["--dry-run and --profile do not go with --slurm: --slurm-print shows its script"])
        if jobs.asked and jobs.per_trial and how.reset:
            raise StudyError(
                ["--reset does not go with --per-trial: remove the checkpoints in trials/*/ of the results"]
            )
        selection = Selection(study, trials, results)
        if jobs.status:
            return on_slurm.show_status(selection, output.as_json)
        if jobs.collect:
            return on_slurm.collect(selection)
        if jobs.asked:
            asked = {"text": jobs.slurm or "", "per_trial": jobs.per_trial, "print_only": jobs.slurm_print}
            words = options.words_again(context, NOT_IN_JOB)
            return on_slurm.submit(selection, cluster, words, output.as_json, **asked, machine=place.machine)
        if plan_only or commands:
            return show_plan(selection, cluster, output.as_json, commands)
        if how.profile:
            return profiling.front(selection.planned(False, cluster), results, how.profile)
        script = os.path.relpath(CHECKOUT / "run_sweep.py")
        door = ["python", script] if context.parent is None else ["scaling-study", "run"]
        left = ",".join(status for status in trials.retry.split(",") if status.strip() not in ("", "ok"))
        words = [*options.words_again(context, NOT_AGAIN), *(("--retry", left) if left else ())]
        again = shlex.join([*door, *words])
        return start_sweep(selection, cluster, again, how, output)

    return options.exit_code(command)


def show_plan(selection: Selection, cluster: Cluster, as_json: bool, commands: bool) -> int:
    """Show what a sweep of these trials would do. Raises StudyError."""
    run, selected = selection.select(selection.planned(True, cluster), prune=False)
    run.records = results_folder.finished(run.folder)
    if as_json:
        print(json.dumps(dry_run.as_json(run, selected)))
    else:
        dry_run.show(Console(highlight=False), run, selected, commands)
    return options.OK


def start_sweep(
    selection: Selection,
    cluster: Cluster,
    again: str,
    how: How,
    output: Output,
    display: Callable[..., progress.Progress] = progress.Progress,
    console: Console | None = None,
) -> int:
    """Run what is not finished, then analyse; the exit code.

    `again`: the command line that continues; `display`: made like a Progress, of what happens meanwhile.

    Raises StudyError or HostError.
    """
    console = console or Console(stderr=output.as_json, highlight=False)
    planned = selection.planned(False, cluster)
    run, selected = selection.select(planned, not how.no_prune)
    run.reset = how.reset
    submit.refuse_live_jobs(run.folder)
    with results_folder.locked(run.folder):
        run.open()
        estimate = Estimate(run.records.values(), datasets.tree_images, planned.machine)
        due = [each.trial for each in selected if not each.unsupported and not run.kept(each)]
        remote = [trial for trial in due if planned.cluster.hosts_of(trial)]
        for note in inspection.inspect_hosts(planned, remote, run.folder) if remote else ():
            console.print(f"Note: {escape(note)}", soft_wrap=True)
        if not output.quiet:
            progress.print_before(console, planned, selected, run, estimate)
        silent = output.quiet or output.as_json
        with (
            process.Interruption() as interruption,
            display(console, planned, selected, estimate, silent, run.folder) as shown,
        ):
            run.run(shown, interruption)
        remaining = [each for each in selected if not run.kept(each)]
        return _finish(console, run, remaining, interruption, again, output)


def _finish(
    console: Console, run: Run, remaining: list[Planned], interruption: process.Interruption, again: str, output: Output
) -> int:
    """Analyse, print the last lines; the exit code."""
    if interruption.signal is not None:
        results_folder.note_end(run.folder, run.plan, interruption.signal.name)
    elif all(planned.trial.id in run.records for planned in run.plan.trials()):
        results_folder.note_end(run.folder, run.plan, "")
    rendered = False
    with contextlib.suppress(KeyboardInterrupt):  # another Ctrl-C: tables can be made again, how to go on is still said
        if not output.no_report:
            options.render(run.folder, None if output.quiet or output.as_json else console)
        rendered = True
    current = {p.trial.configuration for p in (*run.plan.configurations, *run.plan.gates)}  # not before an edit
    current |= {*run.plan.alone}
    records = [r for r in run.records.values() if r.configuration in current and run.wanted(r.trial)]
    if output.as_json:
        rows = [
            {**r.trial.to_dict(), "trial": r.id, "status": r.status, "reason": r.reason}
            | {"samples_per_second": r.samples_per_second}
            for r in records
        ]
        print(json.dumps({"results": str(run.folder), **dry_run.trials_and_gates(rows)}))
    progress.print_after(
        console, run, records, remaining, interruption, again, output.quiet, output.no_report or not rendered
    )
    if interruption.signal is not None or not rendered:
        return options.INTERRUPTED
    failed = any(r.status not in ("ok", "unsupported") and not r.implied for r in records)
    return options.SOME_FAILED if failed else options.OK
