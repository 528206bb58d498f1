"""The one module that talks to Slurm: sbatch, squeue, sacct, sinfo. Everything it says is parsed elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scaling_study.errors import HostError
from scaling_study.slurm import states
from scaling_study.slurm.states import State

PATIENCE_SECONDS = 60.0  # for one answer
AT_ONCE = 500  # jobs in one question: command lines have an end
OF_A_JOB = ("SLURM_CONF", "SLURM_CLUSTERS")  # variables beginning with SLURM_ that are not the surrounding job's own


class NoAnswer(HostError):
    """Slurm, or its command, is not there."""


def submit(script: Path) -> str:
    """Hand a script to sbatch; Slurm's number of the job. Raises HostError with Slurm's own words."""
    return _asked("sbatch", "--parsable", str(script)).strip().partition(";")[0]


def number(name: str) -> str:
    """The number of the job with this name; empty if Slurm knows none."""
    found = states.from_squeue(_squeue("--name", name))
    return max(found, key=int, default="")


def look(jobs: Sequence[str]) -> dict[str, State]:
    """Job number -> State of those that Slurm has not forgotten. Raises NoAnswer."""
    found: dict[str, State] = {}
    for some in _batched(jobs):
        found |= states.from_squeue(_squeue("--jobs", ",".join(some)))
    for completion in ([], ["--completion"]):  # the database, else the file of ended jobs; most have one or none
        for some in _batched([job for job in jobs if job not in found]):
            found |= states.from_sacct(_sacct([*completion, "--jobs", ",".join(some)]))
    return found


def nodes(nodelist: str = "") -> str:
    """One line a node and partition: `partition|node|cpus|MB|gres`, the default partition with a star."""
    only = ["--nodes", nodelist] if nodelist else []
    return _asked("sinfo", "--noheader", "--Node", *only, "--format", "%P|%N|%c|%m|%G")


def _squeue(*which: str) -> str:
    columns = ",".join(f"{column}|" for column in states.SQUEUE)
    try:
        return _asked("squeue", "--noheader", "--states", "all", "--Format", columns, *which)
    except NoAnswer as error:
        if "Invalid job id" in str(error):  # asked for one job that it has forgotten, it gives an error
            return ""
        raise


def _sacct(which: Sequence[str]) -> str:
    try:
        return _asked("sacct", "--noheader", "--allocations", "--parsable", "--format", ",".join(states.SACCT), *which)
    except NoAnswer:  # no accounting here, or none that can be read
        return ""


def _asked(*command: str) -> str:
    """What a command prints. Raises NoAnswer with what it complains of."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k in OF_A_JOB}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise NoAnswer(f"there is no {command[0]} here: Slurm is asked on a machine of its cluster") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} did not answer for {PATIENCE_SECONDS:.0f} s; try again later") from None
    if done.returncode:
        said = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if line.strip()]
        raise NoAnswer(f"{command[0]}: {'; '.join(said[:3]) or f'exit code {done.returncode}'}")
    return done.stdout


def _batched(jobs: Sequence[str]) -> list[Sequence[str]]:
    return [jobs[start : start + AT_ONCE] for start in range(0, len(jobs), AT_ONCE)]
