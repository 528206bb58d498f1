"""Options that several commands have, with their help, by the group under which --help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

TRIALS, HOSTS, OUTPUT, SLURM = "Which trials", "Where and how they run", "What is shown", "Slurm"


def flag(*names: str, help: str, group: str) -> Any:
    """An option without a value."""
    return typer.Option(*names, help=help, rich_help_panel=group)


def option(metavar: str, help: str, group: str, **limits: Any) -> Any:
    """An option with a value, named after its parameter."""
    return typer.Option(metavar=metavar, help=help, rich_help_panel=group, show_default=False, **limits)


# What to run.
Study = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.", show_default=False)]
StudyIfAny = Annotated[Path | None, typer.Argument(metavar="STUDY", help="The study file.", show_default=False)]
DryRun = Annotated[bool, flag("--dry-run", help="Show the plan and start nothing.", group=TRIALS)]
Small = Annotated[bool, flag("--small", help="Apply the study's `small:` overrides.", group=TRIALS)]
Where = Annotated[str, option("K=V,…", "Run only trials with these keys, e.g. framework=horovod,workers=2.", TRIALS)]
Retry = Annotated[str, option("STATUS,…", "Run trials with this status again, e.g. failed,timeout.", TRIALS)]
MaxTrials = Annotated[int | None, option("N", "Run at most N trials now.", TRIALS, min=0)]
NoPrune = Annotated[bool, flag("--no-prune", help="Also run batches above one that was out of memory.", group=TRIALS)]
Reset = Annotated[bool, flag("--reset", help="Begin trainings again, whatever checkpoints they left.", group=TRIALS)]
Profile = Annotated[str, option("TRIAL", "Profile only this trial: traces in profiles/.", TRIALS)]
# Where it runs.
Hosts = Annotated[str, option("H:N,…", "Run over these hosts, e.g. h1:2,h2:2.", HOSTS)]
Hostfile = Annotated[Path | None, option("FILE", "The same from a file with lines such as `h1 slots=2`.", HOSTS)]
MachineFileName = Annotated[str, option("NAME|FILE", "machines/NAME.yaml: network interface, variables, …", HOSTS)]
Detach = Annotated[bool, flag("--detach", help="Run in the background, independent of this terminal.", group=HOSTS)]
Doctor = Annotated[bool, flag("--doctor", help="Try every framework and launcher on this machine.", group=HOSTS)]
PRINT_ENVIRONMENT = "Print what records made here depend on: versions, launchers, variables; as JSON."
PrintEnvironment = Annotated[bool, flag("--print-environment", help=PRINT_ENVIRONMENT, group=HOSTS)]
# What is shown and written.
Results = Annotated[Path, option("DIR", "Write results to DIR/<study>; default: results.", OUTPUT)]
Json = Annotated[bool, flag("--json", help="Print JSON for scripts instead of tables.", group=OUTPUT)]
Quiet = Annotated[bool, flag("-q", "--quiet", help="Print only errors.", group=OUTPUT)]
NoReport = Annotated[bool, flag("--no-report", help="Leave tables and figures for later.", group=OUTPUT)]
# Slurm.
SUBMIT = "Submit a job with these options of sbatch, e.g. partition=gpu,time=2:00:00."
SlurmSubmit = Annotated[str | None, option("K=V,…", SUBMIT, SLURM)]
SbatchOptions = Annotated[str, option("K=V,…", "Options of sbatch, e.g. partition=gpu,time=2:00:00.", SLURM)]
PerTrial = Annotated[bool, flag("--per-trial", help="Submit one job for each trial.", group=SLURM)]
SlurmPrint = Annotated[bool, flag("--slurm-print", help="Show the batch script, submit nothing.", group=SLURM)]
PrintOnly = Annotated[bool, flag("--print", help="Show the batch script, submit nothing.", group=SLURM)]
Status = Annotated[bool, flag("--status", help="Show this study's Slurm jobs.", group=SLURM)]
Collect = Annotated[bool, flag("--collect", help="Record the trials of Slurm jobs that have ended.", group=SLURM)]
JobOfTrial = Annotated[Path | None, typer.Option("--job", hidden=True, help="What a Slurm job of one trial runs.")]
