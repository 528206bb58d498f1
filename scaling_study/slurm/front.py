"""What the front door does with --slurm, and what keeps an ordinary sweep off live jobs."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from scaling_study.errors import HostError
from scaling_study.hosts import allocation
from scaling_study.hosts.hosts import Host
from scaling_study.machine import Machine
from scaling_study.records import results
from scaling_study.slurm import collect, controller, jobs, nodes, submit
from scaling_study.slurm import options as slurm_options
from scaling_study.slurm.controller import NoAnswer
from scaling_study.slurm.submit import Request
from scaling_study.study.machine_file import MachineFile
from scaling_study.sweep import Run

NOT_FOR_JOBS = ("--per-trial", "--json", "--slurm-print")  # of the command line: what is only said to the submitter
NOT_FOR_JOBS_WITH_VALUE = ("--slurm",)


@dataclass(frozen=True)
class Asked:
    """What the command line says of Slurm."""

    options: str = ""
    per_trial: bool = False
    shown: bool = False  # --slurm-print
    status: bool = False
    collect: bool = False
    machine: str = ""  # the machine file, as it was named

    def request(self, results: Path, file: MachineFile) -> Request:
        """Raises StudyError for options that Slurm would not take, or not as they are meant."""
        options = slurm_options.parse(self.options, file.slurm, f"--machine {self.machine}")
        words = ("--machine", self.machine) if self.machine else ()
        return Request(results.name, results, options, file.setup, file.words_before, words)

    def nodes(self, options: slurm_options.Options, here: Machine) -> tuple[Machine, tuple[Host, ...]]:
        """What a node of the partition is, and all of them; for what is only shown also this one. Raises HostError."""
        try:
            found = nodes.read(controller.nodes(options.get("nodelist", "")), options.get("partition", ""))
        except NoAnswer:
            if self.shown:
                return here, ()
            raise
        return nodes.machine(found, options, here), tuple(Host(node.name, node.cores) for node in found)


def submit_sweep(console: Console, request: Request, argv: Sequence[str], shown: bool, as_json: bool) -> None:
    """One job for the whole study, or with `shown` only its script. `argv`: this command line."""
    job, text = submit.whole_sweep(request, words_for_job(argv))
    if shown:
        return _show(request, job, text)
    refuse_live(request.results)  # before the lock, which a sweep that runs in its job holds
    with results.locked(request.results):
        job = submit.hand_over(request.results, job, text)
    _submitted(console, [job], as_json)


def submit_trials(console: Console, request: Request, run: Run, shown: bool, as_json: bool) -> None:
    """A job for each trial that is neither finished nor in one, or with `shown` the script of the first."""
    if shown:
        trials = list(run.trials())
        trial, planned = next(((trial, one) for trial, one in trials if not one.unsupported), trials[0])
        return _show(request, *submit.one_trial(request, trial, planned))
    collect.collect(request.results)
    submitted = []
    with results.locked(request.results):
        run.open()
        for trial, planned in submit.open_trials(run):
            job, text = submit.one_trial(request, trial, planned)
            submitted.append(submit.hand_over(request.results, job, text, run.begun(trial, planned)))
    _submitted(console, submitted, as_json)


def words_for_job(argv: Sequence[str]) -> list[str]:
    """A command line without what only its submitter is to do."""
    kept, words = [], iter(argv)
    for word in words:
        if word in NOT_FOR_JOBS_WITH_VALUE:
            next(words, None)
        elif word not in NOT_FOR_JOBS and not word.startswith(tuple(f"{name}=" for name in NOT_FOR_JOBS_WITH_VALUE)):
            kept.append(word)
    return kept


def refuse_live(folder: Path) -> None:
    """Raises HostError if jobs of this folder wait or run, but for the one that this process runs in."""
    open_, mine = list(jobs.open_ones(folder)), allocation.current()
    if not open_ or (mine and mine.name in {job.name for job in open_}):  # there was no other when it was submitted
        return
    if live := [seen.job.id for seen in collect.look(folder) if not seen.ended]:
        some = ", ".join(live[:5]) + (", ..." if len(live) > 5 else "")
        raise HostError(
            f"{folder}: {len(live)} of its Slurm jobs wait or run ({some}); --status shows them, --collect records "
            "what has ended, and scancel ends them"
        )


def _show(request: Request, job: jobs.Job, text: str) -> None:
    """The script alone on stdout, so that it can be sent to a file, edited and handed to sbatch."""
    print(text, end="")
    folder = shlex.quote(str(jobs.place(request.results.resolve(), job)))
    print(f"Nothing was submitted. To submit it by hand: mkdir -p {folder} && sbatch FILE", file=sys.stderr)


def _submitted(console: Console, new: Sequence[jobs.Job], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"jobs": [{"job": job.id, "trial": job.trial} for job in new]}))
    if not new:
        console.print("Every trial is finished, or in a job.")
    elif not new[0].trial:
        console.print(f"Submitted job {new[0].id}, which runs the whole study.")
    else:
        numbers = f"jobs {new[0].id} to {new[-1].id}" if len(new) > 1 else f"job {new[0].id}"
        console.print(f"Submitted {len(new)} of the study's trials, each in a job of its own: {numbers}.")
    console.print("To look: the same study with --status; to record what has ended: with --collect.")
