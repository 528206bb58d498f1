"""What launchers must know of the hosts that a study runs on: which, and their settings in the machine file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scaling_study.hosts import hosts
from scaling_study.hosts.allocation import Allocation
from scaling_study.hosts.hosts import Host
from scaling_study.study.machine_file import MachineFile
from scaling_study.trial import Trial

# Variables that name the network interface to torch's and NVIDIA's libraries; Horovod and Open MPI have options.
INTERFACE_OF = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@dataclass(frozen=True)
class Cluster:
    """The hosts there are, and their machine file. Without either: this machine alone, as it is."""

    hosts: tuple[Host, ...] = ()
    file: MachineFile = field(default_factory=MachineFile)
    exports: tuple[str, ...] = ()  # variables of this environment that ranks on other hosts are to have (exported.py)
    in_job: bool = False  # of Slurm: here, or where a job is to run what is planned

    def hosts_of(self, trial: Trial) -> tuple[Host, ...]:
        """The hosts of a trial, each with the number of its workers there; none: it runs on this machine alone."""
        return hosts.with_equal_slots(self.hosts, trial.hosts, trial.workers) if self.hosts and trial.hosts else ()

    def interface(self, trial: Trial) -> str:
        """The network interface that the trial's traffic is to take; empty: whichever its libraries choose."""
        return (self.file.interface or "") if self.hosts_of(trial) else ""

    def environment(self, trial: Trial) -> dict[str, str]:
        """The variables that each of the trial's processes is to have."""
        interface = self.interface(trial)
        return {**(dict.fromkeys(INTERFACE_OF, interface) if interface else {}), **self.file.environment}

    def exported(self, trial: Trial) -> list[str]:
        """The names of all variables that go with the trial to other hosts."""
        return sorted({*self.exports, *self.environment(trial)})

    def flags(self, launcher: str) -> list[str]:
        """The options that the machine file adds to a launcher."""
        flags: Mapping[str, list[str]] = self.file.flags
        return list(flags.get(launcher, ()))

    def fingerprint(self, hardware: str) -> str:
        """Of the machine that trials are planned for: its hardware, and what the machine file makes of it."""
        return f"{hardware}-{self.file.fingerprint}" if self.file.fingerprint else hardware

    def to_dict(self) -> dict[str, Any]:
        """For records: what was given, and nothing else."""
        return self.file.model_dump(exclude_defaults=True, mode="json")


def allocated(job: Allocation | None) -> tuple[Host, ...]:
    """The hosts of a Slurm job, each with room for as many workers as it has cores there."""
    return tuple(map(Host, job.hosts, job.cores)) if job else ()


ALONE = Cluster()
