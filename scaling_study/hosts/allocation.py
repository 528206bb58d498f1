"""The Slurm job that this process runs in, from the variables that Slurm sets (pure but for reading them)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scaling_study.hosts import hostlist

COUNTS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")  # one of `2,1(x3)`
NOT_OF_A_JOB = ("SLURM_CONF", "SLURM_CLUSTERS")  # that begin like a job's own variables


@dataclass(frozen=True)
class Allocation:
    """What a job was given, as far as a record or a launcher needs it."""

    job: str  # Slurm's number of it; of a cluster that forgets, not for ever the same job
    name: str
    cluster: str
    partition: str
    hosts: tuple[str, ...]
    cores: tuple[int, ...]  # on each host

    def to_dict(self) -> dict[str, Any]:
        """For the record of a trial."""
        said = {"job": self.job, "name": self.name, "cluster": self.cluster, "partition": self.partition}
        return {**said, "hosts": list(self.hosts)}


def current(environment: Mapping[str, str] | None = None) -> Allocation | None:
    """The job around this process; None outside of any."""
    said = os.environ if environment is None else environment
    if not (job := said.get("SLURM_JOB_ID", "")):
        return None
    try:
        hosts = hostlist.expand(said.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        hosts = []
    return Allocation(
        job, said.get("SLURM_JOB_NAME", ""), said.get("SLURM_CLUSTER_NAME", ""), said.get("SLURM_JOB_PARTITION", ""),
        tuple(hosts), tuple(_counts(said.get("SLURM_JOB_CPUS_PER_NODE", ""))[: len(hosts)]),
    )  # fmt: skip


def hidden(environment: Mapping[str, str] | None = None) -> list[str]:
    """What stands before a command that is to see nothing of the job: `env -u SLURM_JOB_ID ...`; nothing outside one.

    mpirun and horovodrun look for a job by themselves. One that is to start ranks on its own host would start them on
    all hosts of the job, or refuse: Open MPI knows no `localhost` in a job ("all nodes are already filled").
    """
    said = os.environ if environment is None else environment
    names = sorted(name for name in said if name.startswith(("SLURM_", "SLURMD_")) and name not in NOT_OF_A_JOB)
    return ["env", *(word for name in names for word in ("-u", name))] if names else []


def _counts(text: str) -> list[int]:
    """`2,1(x3)` -> 2, 1, 1, 1."""
    found = [COUNTS.fullmatch(part) for part in text.split(",")]
    return [int(one[1]) for one in found if one for _ in range(min(int(one[2] or 1), hostlist.MOST_HOSTS))]
