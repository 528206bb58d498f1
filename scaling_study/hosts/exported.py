"""Which environment variables a trial takes to another host, and which it must not. Pure.

Horovod's launcher writes its whole environment, with every key and password in it, on the command line of ssh, where
each user of both hosts can read it. Open MPI's and torch's give the others nothing. So a trial over hosts is started
with what is listed here alone: what decides speed, what says where things are, and what a machine file names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scaling_study.processes.leftovers import MARK
from scaling_study.provenance import DECISIVE

PREFIXES = (*DECISIVE, "GLOO_", "TP_", "UCX_", "FI_", "TORCHINDUCTOR_", "PYTHON", "SCALING_STUDY_", "LC_")
NAMES = (MARK, "TMPDIR", "DATA_ROOT", "DATA_PATH", "LD_LIBRARY_PATH", "LANG")
# What the launcher itself, and the ssh that it calls, need on this host.
AT_HOME = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "HOSTNAME", "SSH_AUTH_SOCK", "KRB5CCNAME", "VIRTUAL_ENV",
    "CONDA_PREFIX",
)  # fmt: skip
PREFIXES_AT_HOME = ("SLURM_", "PMIX_", "PRTE_", "OPAL_")


def exported_names(environment: Mapping[str, str], also: Iterable[str] = ()) -> list[str]:
    """The variables that every rank gets, on any host."""
    listed = {*NAMES, *also}
    return sorted(name for name in environment if name in listed or name.startswith(PREFIXES))


def env_without_private(environment: Mapping[str, str], also: Iterable[str] = ()) -> list[str]:
    """The prefix of a launcher's command that removes all other variables: `env -u NAME -u NAME ...`."""
    kept = {*exported_names(environment, also), *AT_HOME}
    dropped = sorted(name for name in environment if name not in kept and not name.startswith(PREFIXES_AT_HOME))
    return ["env", *(word for name in dropped for word in ("-u", name))] if dropped else []
