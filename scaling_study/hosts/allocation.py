"""The Slurm job that this process runs in, from the variables that Slurm sets (pure but for reading them)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scaling_study.hosts import hostlist

COUNTS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")  # each part of `2,1(x3)`
NOT_OF_A_JOB = ("SLURM_CONF", "SLURM_CLUSTERS")  # that begin like a job's own variables


@dataclass(frozen=True)
class Allocation:
    """The resources of a job, as far as a record or a launcher needs them."""

    job: str  # Slurm's number of it; of a cluster that forgets, not for ever the same job
    name: str
    cluster: str
    partition: str
    hosts: tuple[str, ...]
    cores: tuple[int, ...]  # on each host

    def to_dict(self) -> dict[str, Any]:
        """For the record of a trial."""
        return {
            "job": self.job, "name": self.name, "cluster": self.cluster, "partition": self.partition,
            "hosts": list(self.hosts),
        }  # fmt: skip


def current(environment: Mapping[str, str] | None = None) -> Allocation | None:
    """The job around this process; None outside of any."""
    variables = os.environ if environment is None else environment
    if not (job := variables.get("SLURM_JOB_ID", "")):
        return None
    try:
        hosts = hostlist.expand(variables.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        hosts = []
    return Allocation(
        job, variables.get("SLURM_JOB_NAME", ""), variables.get("SLURM_CLUSTER_NAME", ""),
        variables.get("SLURM_JOB_PARTITION", ""), tuple(hosts),
        tuple(_counts(variables.get("SLURM_JOB_CPUS_PER_NODE", ""))[: len(hosts)]),
    )  # fmt: skip


def env_without_job(environment: Mapping[str, str] | None = None) -> list[str]:
    """The prefix of a command that must not see the job: `env -u SLURM_JOB_ID ...`; empty outside a job.

    mpirun and horovodrun look for a job by themselves. One that is to start ranks on its own host would start them on
    all hosts of the job, or refuse: Open MPI knows no `localhost` in a job ("all nodes are already filled").
    """
    variables = os.environ if environment is None else environment
    names = sorted(name for name in variables if name.startswith(("SLURM_", "SLURMD_")) and name not in NOT_OF_A_JOB)
    return ["env", *(word for name in names for word in ("-u", name))] if names else []


def _counts(text: str) -> list[int]:
    """`2,1(x3)` -> 2, 1, 1, 1."""
    matches = filter(None, (COUNTS.fullmatch(part) for part in text.split(",")))
    return [int(match[1]) for match in matches for _ in range(min(int(match[2] or 1), hostlist.MOST_HOSTS))]
