"""--profile TRIAL: one trial once more, watched by torch's profiler, and by Horovod's timeline where it is Horovod's.

    results/<study>/profiles/<trial id>/
        torch-rank-<n>.json.gz     a few steps of each rank, after all that is measured (measure/inspected.py)
        horovod-timeline.json      of Horovod: what its background thread did, from the beginning
        log.txt, ranks/            as of any trial

Watching costs time, so nothing of such a run is a result: it leaves no record, and trials/ stays as it was. The traces
open in ui.perfetto.dev, and in chrome://tracing; the report lists them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from scaling_study.commands.options import INTERRUPTED, OK, SOME_FAILED
from scaling_study.errors import StudyError
from scaling_study.launch.attempts import Attempts
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.processes.process import Interruption
from scaling_study.records.outcome import Outcome
from scaling_study.records.results import locked
from scaling_study.settings import PROFILE
from scaling_study.study.plan import Plan, Planned
from scaling_study.sweep import Run

FOLDER = "profiles"
HOROVOD, HOROVOD_TIMELINE = "HOROVOD_TIMELINE", "horovod-timeline.json"  # its own variable, and our file
MOST_NAMED = 6


def front(plan: Plan, results: Path, asked: str) -> int:
    """Run one trial for its traces, and say where they are; the exit code. Raises StudyError or HostError."""
    console = Console(highlight=False, soft_wrap=True)
    job = Run(plan, results / plan.study.name)
    planned = chosen(asked, plan.trials())
    with locked(job.folder), Interruption() as interruption:
        job.open()
        result, paths = run(job, planned, interruption)
    why = f" ({escape(result.reason)})" if result.reason else ""
    console.print(f"{escape(planned.trial.id)}: {result.status}{why}")
    for path in paths:
        console.print(f"  {escape(str(path))}")
    if paths:
        console.print("Open them in ui.perfetto.dev or chrome://tracing. Profiling slows steps: no record is kept.")
    return {"ok": OK, "cancelled": INTERRUPTED}.get(result.status, SOME_FAILED)


def chosen(asked: str, trials: Iterable[Planned]) -> Planned:
    """The trial whose id this is, or the first repeat of the one configuration in whose id it stands.

    Raises StudyError where there is none, where there are several, and for one that cannot run here.
    """
    every = list(trials)
    named = [planned for planned in every if planned.trial.id == asked]
    matches = named or [planned for planned in every if asked in planned.trial.configuration]
    ids = list(dict.fromkeys(planned.trial.configuration for planned in matches or every))
    some = ", ".join(ids[:MOST_NAMED]) + (f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else "")
    if not matches:
        raise StudyError([f"--profile {asked}: no trial of this study; there are {some}"])
    if len(ids) > 1:
        raise StudyError([f"--profile {asked}: which of {len(ids)}? {some}"])
    planned = min(matches, key=lambda planned: planned.trial.repeat)
    if planned.unsupported:
        raise StudyError([f"--profile {asked}: cannot run here: {planned.unsupported}"])
    return planned


def run(job: Run, planned: Planned, interruption: Interruption) -> tuple[Outcome, list[Path]]:
    """Run one trial; its outcome and its traces. The environment of this process is the trial's from now on."""
    trial = planned.trial
    folder = job.folder / FOLDER / trial.id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ[PROFILE] = str(folder.resolve())
    if trial.framework == "horovod":
        os.environ[HOROVOD] = str(folder.resolve() / HOROVOD_TIMELINE)
    asked = [name for name in (PROFILE, HOROVOD) if name in os.environ]
    cluster = replace(job.plan.cluster, exports=(*job.plan.cluster.exports, *asked))
    with SupervisorClient(job.folder, interruption) as supervisor:
        attempt = Attempts(supervisor, cluster).run_with_retries(trial, folder, planned.measure)
    return attempt.outcome, traces(folder)


def traces(folder: Path) -> list[Path]:
    """The traces of one trial, by name."""
    return sorted([*folder.glob("torch-rank-*.json.gz"), *folder.glob("horovod-*.json*")])
