"""Environment variables: which are recorded, which a trial here does not get, which go with it to other hosts. Pure.

    on this machine    all of them, except those that would decide ranks, cores or devices in the launcher's place
    over hosts         what decides speed, what says where things are, what a machine file names; nothing else
    in the record      values of those that decide speed, never of a possible secret; the names of the removed

A shell may still hold variables of another launch, of a job that is over, or of a cluster's modules, and launchers
believe them: `LOCAL_RANK=0 RANK=0 WORLD_SIZE=1` put four workers on core 0, `PET_NNODES=2` made torchrun wait for a
second host, and `OMP_PROC_BIND=close` left a process one core of two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One source of variables that would decide a trial's ranks, cores or devices, and how their names are known."""

    source: str
    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    but: tuple[str, ...] = ()  # names that begin so and decide nothing

    def covers(self, name: str) -> bool:
        return name not in self.but and (name in self.names or name.startswith(self.prefixes))


JOB = Cause("a Slurm job", prefixes=("SLURM_", "SLURMD_"), but=("SLURM_CONF", "SLURM_CLUSTERS"))
LAUNCHERS = (
    Cause(
        "a launch by torchrun",
        (
            "RANK",
            "LOCAL_RANK",
            "GROUP_RANK",
            "ROLE_RANK",
            "NODE_RANK",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            "GROUP_WORLD_SIZE",
            "ROLE_WORLD_SIZE",
            "ROLE_NAME",
            "MASTER_ADDR",
            "MASTER_PORT",
        ),
        ("PET_", "TORCHELASTIC_"),
    ),
    Cause("a launch by deepspeed", ("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE"), ("DLTS_",)),
    Cause("a launch by accelerate", prefixes=("ACCELERATE_",)),
    Cause(
        "a launch by horovodrun",
        (
            "HOROVOD_RANK",
            "HOROVOD_SIZE",
            "HOROVOD_LOCAL_RANK",
            "HOROVOD_LOCAL_SIZE",
            "HOROVOD_CROSS_RANK",
            "HOROVOD_CROSS_SIZE",
            "HOROVOD_CONTROLLER",
            "HOROVOD_CPU_OPERATIONS",
            "HOROVOD_HOSTNAME",
            "HOROVOD_ELASTIC",
            "HOROVOD_SECRET_KEY",
            "HOROVOD_GLOO_IFACE",
        ),
        ("HOROVOD_GLOO_RENDEZVOUS_",),
    ),
    Cause(
        "an MPI job",
        ("OMPI_UNIVERSE_SIZE", "OMPI_FIRST_RANKS", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        ("OMPI_COMM_WORLD_", "OMPI_APP_CTX_", "MV2_COMM_WORLD_", "PALS_", "JSM_NAMESPACE_"),
    ),
    Cause("a Flux job", ("FLUX_TASK_LOCAL_ID", "FLUX_TASK_RANK", "FLUX_JOB_SIZE")),
)
BINDING = Cause(
    "a binding of threads to cores",
    ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET"),
)


def removed(environment: Mapping[str, str], given: Iterable[str] = (), in_job: bool = False) -> dict[str, str]:
    """Name -> source of the variables that a trial on this machine does not get.

    `given`: variables that a machine file sets. `in_job`: srun starts it, which needs those of the
    job. mpirun and horovodrun look for a job by themselves, and would start ranks on all hosts of it.
    """
    causes = (*LAUNCHERS, BINDING) if in_job else (*LAUNCHERS, BINDING, JOB)
    kept = set(given)
    sources = {
        name: next((cause.source for cause in causes if cause.covers(name)), "")
        for name in sorted(environment)
        if name not in kept
    }
    return {name: source for name, source in sources.items() if source}


def env_without(names: Iterable[str]) -> list[str]:
    """The prefix of a command that is not to see these variables: `env -u NAME -u NAME ...`; empty for none."""
    words = [word for name in names for word in ("-u", name)]
    return ["env", *words] if words else []


# Horovod's launcher writes its whole environment, with every key and password in it, on the command line of ssh, where
# each user of both hosts can read it. Open MPI's and torch's give the others nothing.

DECISIVE = ("OMP_", "MKL_", "KMP_", "GOMP_", "HOROVOD_", "OMPI_MCA_", "NCCL_", "CUDA_", "TORCH_", "PYTORCH_")
TRAVELLING = (*DECISIVE, "GLOO_", "TP_", "UCX_", "FI_", "TORCHINDUCTOR_", "PYTHON", "SCALING_STUDY_", "LC_")
PLACES = ("TMPDIR", "DATA_ROOT", "DATA_PATH", "LD_LIBRARY_PATH", "LANG")
# Variables that the launcher itself, and the ssh that it calls, need on this host.
AT_HOME = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "HOSTNAME",
    "SSH_AUTH_SOCK",
    "KRB5CCNAME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
)
JOB_AT_HOME = ("SLURM_", "PMIX_", "PRTE_", "OPAL_")


def exported_names(environment: Mapping[str, str], also: Iterable[str] = ()) -> list[str]:
    """The variables that every rank of a trial over hosts gets, on any host. `also`: names that a machine file has."""
    named = {*PLACES, *also}
    stale = removed(environment, named)
    return sorted(name for name in environment if name in named or (name.startswith(TRAVELLING) and name not in stale))


def env_without_private(environment: Mapping[str, str], also: Iterable[str] = ()) -> list[str]:
    """The prefix of the command of a launcher over hosts, without all other variables."""
    kept = {*exported_names(environment, also), *AT_HOME}
    return env_without(name for name in sorted(environment) if name not in kept and not name.startswith(JOB_AT_HOME))


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # of a variable, as every shell takes it

# Records and packed results travel further than anybody remembers.

SECRET = re.compile(r"TOKEN(?!IZ)|SECRET|PASSW|CREDENTIAL|(^|_)(API|ACCESS|PRIVATE|AUTH)?_?KEY($|_)", re.IGNORECASE)
NOT_RECORDED = "(not recorded: it may be a secret)"


def recorded(environment: Mapping[str, str], given: Mapping[str, str], removed: Iterable[str] = ()) -> dict[str, str]:
    """The variables of a trial that change its speed without standing on its command line, and those `given` to it."""
    gone = set(removed)
    kept = {name: value for name, value in environment.items() if name.startswith(DECISIVE) and name not in gone}
    return without_secrets({**dict(sorted(kept.items())), **given})


def may_be_secret(name: str) -> bool:
    """True for a variable whose value is not to be written down, by its name."""
    return SECRET.search(name) is not None


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """The same, with a word in place of each value that may be a secret, by the variable's name."""
    return {name: NOT_RECORDED if may_be_secret(name) else value for name, value in variables.items()}
