"""What this machine lacks for a trial, and what would bring it."""

from __future__ import annotations

import re
import shutil
from importlib import metadata

from scaling_study.errors import HostError
from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch import attempts, launchers
from scaling_study.machine import Machine, installed
from scaling_study.models import model_named
from scaling_study.settings import CHECKOUT
from scaling_study.study.cluster import Cluster
from scaling_study.study.support import unsupported
from scaling_study.trial import Trial

PACKAGES = {"mpirun": "openmpi-bin", "srun": "slurm-client"}  # of Debian and Ubuntu


def reason(trial: Trial, machine: Machine, cluster: Cluster) -> str:
    """Why the trial cannot be tried here, and what would bring it; empty if it can."""
    table = FRAMEWORKS[trial.framework]
    if library := next((name for name in needed(trial) if name not in machine.libraries), ""):
        return f"{library} is not installed: {_source(library)}"
    if trial.launcher == "srun" and not cluster.in_job:
        how = "salloc -n 2 scaling-study doctor" if shutil.which("srun") else f"apt install {PACKAGES['srun']}"
        return f"needs a Slurm job{'' if shutil.which('srun') else ', and there is no srun'}: {how}"
    if trial.device == "cuda" and not machine.gpus:
        return f"needs a GPU: {table.needs_gpu}"
    if why := unsupported(trial, machine, cluster):
        return why
    program = launchers.command(trial)
    program_path = shutil.which(program.argv[0], path=attempts.launch_environment(program)["PATH"])
    if program_path:
        return ""
    package = PACKAGES.get(trial.launcher)
    return f"no {trial.launcher} on PATH: make setup{f', or apt install {package}' if package else ''}"


def require_scripts() -> None:
    """Raises HostError where this package was installed without the scripts that trials run: as a wheel."""
    if not (CHECKOUT / FRAMEWORKS["single"].script).is_file():
        raise HostError(
            "trials are run from a checkout: clone the project, `pip install -e .` there. What is installed here plans "
            "(--dry-run) and analyses"
        )


def no_gpu() -> str:
    """Why no GPU is seen."""
    if not installed("nvidia-ml-py"):
        return "no GPU can be seen, as nvidia-ml-py is not installed: make setup"
    return "no GPU: NVIDIA's driver reports none (nvidia-smi, CUDA_VISIBLE_DEVICES)"


def needed(trial: Trial) -> list[str]:
    """The distributions that a trial needs."""
    table = FRAMEWORKS[trial.framework]
    return [*table.needs, *table.launcher_needs.get(trial.launcher, ()), *model_named(trial.model).needs]


def libraries(machine: Machine) -> list[str]:
    """The frameworks' libraries that are not installed."""
    names = (name for table in FRAMEWORKS.values() for name in table.needs)
    return [name for name in dict.fromkeys(names) if name not in machine.libraries]


def _source(library: str) -> str:
    """What installs it: `make setup`, and the extra that has it."""
    try:
        requirements = metadata.requires("scaling-study") or []
    except metadata.PackageNotFoundError:  # run from a checkout
        requirements = []
    for requirement in requirements:
        if match := re.match(rf"{re.escape(library)}\b.*extra == [\"']([\w-]+)[\"']", requirement):
            return f"make setup, or pip install '.[{match[1]}]'"
    return "make setup"
