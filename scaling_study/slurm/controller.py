"""The one module that talks to Slurm: sbatch, squeue, sacct, sinfo. Their output is parsed elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scaling_study.errors import HostError
from scaling_study.slurm import states
from scaling_study.slurm.states import JobState

TIMEOUT_SECONDS = 60.0  # for one answer
JOBS_PER_QUERY = 500  # command lines have a maximum length
CLUSTER_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS")  # begin with SLURM_ but do not belong to the surrounding job


class SlurmUnavailable(HostError):
    """A command of Slurm is missing, failed, or did not answer."""


def submit(script: Path) -> str:
    """Submit a script with sbatch; Slurm's number of the job. Raises HostError with Slurm's own message."""
    return _output("sbatch", "--parsable", str(script)).strip().partition(";")[0]


def job_number(name: str) -> str:
    """The number of the job with this name; empty if Slurm knows none."""
    return max(states.parse_squeue(_squeue("--name", name)), key=int, default="")


def job_states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Job number -> JobState of those that Slurm has not forgotten. Raises SlurmUnavailable."""
    known: dict[str, JobState] = {}
    for batch in _batches(jobs):
        known |= states.parse_squeue(_squeue("--jobs", ",".join(batch)))
    for completion in ([], ["--completion"]):  # the database, else the file of ended jobs; most have one or none
        for batch in _batches([job for job in jobs if job not in known]):
            known |= states.parse_sacct(_sacct([*completion, "--jobs", ",".join(batch)]))
    return known


def list_nodes(nodelist: str = "") -> str:
    """One line a node and partition: `partition|node|cpus|MB|gres`, the default partition with a star."""
    only = ["--nodes", nodelist] if nodelist else []
    return _output("sinfo", "--noheader", "--Node", *only, "--format", "%P|%N|%c|%m|%G")


def _squeue(*selection: str) -> str:
    columns = ",".join(f"{column}|" for column in states.SQUEUE)
    try:
        return _output("squeue", "--noheader", "--states", "all", "--Format", columns, *selection)
    except SlurmUnavailable as error:
        if "Invalid job id" in str(error):  # its error where it has forgotten the only job asked for
            return ""
        raise


def _sacct(selection: Sequence[str]) -> str:
    columns = ",".join(states.SACCT)
    try:
        return _output("sacct", "--noheader", "--allocations", "--parsable", "--format", columns, *selection)
    except SlurmUnavailable:  # no accounting here, or none that can be read
        return ""


def _output(*command: str) -> str:
    """What a command prints. Raises SlurmUnavailable with its error message."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k in CLUSTER_VARIABLES}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise SlurmUnavailable(f"{command[0]} is not installed here: run this on a machine of the cluster") from None
    except subprocess.TimeoutExpired:
        raise SlurmUnavailable(f"{command[0]} did not answer for {TIMEOUT_SECONDS:.0f} s; try again later") from None
    if done.returncode:
        messages = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if line.strip()]
        raise SlurmUnavailable(f"{command[0]}: {'; '.join(messages[:3]) or f'exit code {done.returncode}'}")
    return done.stdout


def _batches(jobs: Sequence[str]) -> list[Sequence[str]]:
    return [jobs[start : start + JOBS_PER_QUERY] for start in range(0, len(jobs), JOBS_PER_QUERY)]
