"""`scaling-study slurm submit | status | collect`, which are also run_sweep.py's --slurm, --status and --collect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from scaling_study.commands import options
from scaling_study.commands.options import OK, SLURM, SOME_FAILED, PlaceOptions, Selection, Trials, exit_code
from scaling_study.machine import this_machine
from scaling_study.slurm import collect as slurm_jobs
from scaling_study.slurm import submit as slurm_submit
from scaling_study.slurm.submit import Request
from scaling_study.study import study as study_files
from scaling_study.study.plan import ONE_HOST
from scaling_study.study.support import Cluster

app = typer.Typer(cls=options.Group, help="Submit a study to Slurm, show its jobs, record their results.")
NOT_IN_JOB = ("sbatch", "per_trial", "print_only", "as_json")  # for the process that submits
EXAMPLE = "Example: scaling-study slurm {}"
SUBMIT = EXAMPLE.format("submit study.yaml --sbatch partition=gpu,time=2:00:00")


@app.command(
    "submit", cls=options.Command, short_help="Submit a study as one job, or as one job for each trial.", epilog=SUBMIT
)
@options.grouped
def submit_command(
    context: typer.Context,
    *,
    study: options.Study,
    sbatch: Annotated[str, options.option("K=V,…", "Options of sbatch, e.g. partition=gpu,time=2:00:00.", SLURM)] = "",
    per_trial: options.PerTrial = False,
    print_only: Annotated[bool, options.flag("--print", "Show the batch script, submit nothing.", SLURM)] = False,
    trials: Trials,
    place: PlaceOptions,
    results: options.Results = Path("results"),
    as_json: options.Json = False,
) -> int:
    """Submit one job that runs the whole study, or with --per-trial one job for each trial."""
    selection, words = Selection(study, trials, results), options.words_again(context, NOT_IN_JOB)
    asked = {"text": sbatch, "per_trial": per_trial, "print_only": print_only, "machine": place.machine}
    return exit_code(lambda: submit(selection, place.cluster(), words, as_json, **asked))


@app.command("status", cls=options.Command, epilog=EXAMPLE.format("status study.yaml"))
def status_command(
    study: options.Study,
    small: options.Small = False,
    results: options.Results = Path("results"),
    as_json: options.Json = False,
) -> int:
    """Show the study's jobs: those that wait, run or have ended."""
    return exit_code(lambda: show_status(Selection(study, Trials(small), results), as_json))


@app.command(
    "collect",
    cls=options.Command,
    short_help="Record the trials of jobs that have ended.",
    epilog=EXAMPLE.format("collect study.yaml"),
)
def collect_command(
    study: options.Study, small: options.Small = False, results: options.Results = Path("results")
) -> int:
    """Record the trials of jobs that have ended, then write tables and figures."""
    return exit_code(lambda: collect(Selection(study, Trials(small), results)))


def submit(selection: Selection, cluster: Cluster, words: list[str], as_json: bool, **asked: Any) -> int:
    """Submit the study's jobs; `words` follow run_sweep.py in a job of all, `asked` are fields of a Request.

    Raises StudyError or HostError.
    """
    console = Console(stderr=as_json, highlight=False)
    request = Request(results_of(selection), cluster.file, **asked)
    if not request.per_trial:
        planned = selection.planned(True)
        selection.select(planned, prune=False)
        nodes_asked = str(request.options.get("nodes", "1"))
        if nodes_asked != "1" and not any(each.trial.hosts for each in planned.trials()):
            console.print(f"Note: nodes={nodes_asked}: {ONE_HOST}", soft_wrap=True)
        slurm_submit.submit_sweep(console, request, words, as_json)
        return OK
    node, nodes = request.nodes(this_machine())
    cluster = replace(cluster, hosts=nodes, in_job=True)
    run, _ = selection.select(selection.planned(request.print_only, cluster, node), prune=False)
    slurm_submit.submit_trials(console, request, run, as_json)
    return OK


def show_status(selection: Selection, as_json: bool) -> int:
    """Show the jobs of the study; SOME_FAILED if Slurm did not answer. Raises StudyError."""
    console = Console(stderr=as_json, highlight=False)
    return OK if slurm_jobs.show_status(console, results_of(selection), as_json) else SOME_FAILED


def collect(selection: Selection) -> int:
    """Record what has ended; SOME_FAILED if a trial did not end well. Raises StudyError or HostError."""
    folder = results_of(selection)
    if not (records := slurm_jobs.show_collected(Console(highlight=False), folder)):
        return OK
    options.render(folder, None)
    return OK if all(record.status in ("ok", "unsupported") for record in records) else SOME_FAILED


def results_of(selection: Selection) -> Path:
    """results/<study>. Raises StudyError for a study file that is wrong."""
    return selection.results / study_files.load(selection.study_file, selection.trials.small).name
