"""The machine: what it must have, since no root is asked for, and the MPI and the GPU that Horovod is built with.

Looked at, never changed. Two environment variables overrule what is found, for those who know better:
`SCALING_STUDY_MPI=system|wheel` and `SCALING_STUDY_CUDA=0|1`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from environment.progress import SetupFailed

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
FREE_BYTES = 9 * 10**9  # torch with its CUDA libraries takes 6 GB; unpacking it, and Horovod, some more


@dataclass(frozen=True)
class Prerequisite:
    """One thing that set-up cannot install: what it is, and the package that brings it."""

    what: str
    debian: str
    fedora: str


COMPILER = Prerequisite("a C++ compiler (g++)", "g++", "gcc-c++")
MAKE = Prerequisite("make", "make", "make")
PATCH = Prerequisite("patch (or git)", "patch", "patch")
VENV = Prerequisite("Python's venv module (ensurepip)", f"{PYTHON}-venv", "python3-libs")
HEADERS = Prerequisite("Python's headers (Python.h)", f"{PYTHON}-dev", "python3-devel")


def demand(venv: Path) -> None:
    """Raise SetupFailed, with the sentence to show, unless the environment can be made here."""
    if lacking := missing():
        raise SetupFailed(sentence(lacking))
    if not venv.exists():
        nearest = next(parent for parent in venv.parents if parent.exists())
        if (free := shutil.disk_usage(nearest).free) < FREE_BYTES:
            raise SetupFailed(f"{nearest} has {free / 1e9:.1f} GB free, and set-up needs {FREE_BYTES / 1e9:.0f} GB.")


def missing() -> list[Prerequisite]:
    """Return what this machine and this interpreter lack."""
    found = {
        COMPILER: shutil.which(os.environ.get("CXX", "g++")),
        MAKE: shutil.which("make"),
        PATCH: shutil.which("patch") or shutil.which("git"),
        VENV: importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"),
        HEADERS: (Path(sysconfig.get_paths()["include"]) / "Python.h").exists(),
    }
    return [prerequisite for prerequisite, present in found.items() if not present]


def sentence(lacking: list[Prerequisite]) -> str:
    """Say in one sentence what is missing and which packages bring it.

    >>> sentence([COMPILER, MAKE])
    'This machine lacks a C++ compiler (g++) and make: install g++ make (Debian, Ubuntu) or gcc-c++ make (Fedora).'
    """
    names = [prerequisite.what for prerequisite in lacking]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    debian = " ".join(prerequisite.debian for prerequisite in lacking)
    fedora = " ".join(prerequisite.fedora for prerequisite in lacking)
    return f"This machine lacks {listed}: install {debian} (Debian, Ubuntu) or {fedora} (Fedora)."


@dataclass(frozen=True)
class Mpi:
    """The MPI to build and run with: the machine's own, or (`system` false) the wheel from the registry."""

    system: bool
    description: str
    identity: str = ""  # where its libraries are: a wheel linked against others is another wheel


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit that is worth building for, since there is a GPU to run on."""

    home: Path
    version: str
    architectures: str  # as Horovod's CMake takes them: "80,90"


def answer(*command: str | Path) -> str:
    """Return what a command prints, or nothing where it is missing, fails or hangs."""
    try:
        # Open MPI's tools refuse to start without HOME.
        environ = {"HOME": os.path.expanduser("~"), **os.environ}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, env=environ, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def find_mpi(venv: Path) -> Mpi:
    """Choose the machine's Open MPI when it can both compile and launch, otherwise the wheel.

    MPICH is passed over: horovodrun does not recognise it. So is whatever lies in the environment itself, or in another
    one that happens to be active: its libraries go with it.
    """
    path = os.pathsep.join(entry for entry in os.get_exec_path() if not is_of_an_environment(Path(entry), venv))
    compiler, launcher = (shutil.which(name, path=path) for name in ("mpicxx", "mpirun"))
    version = re.search(r"Open MPI\D*(\d[\w.]*)", answer(launcher, "--version")) if launcher and compiler else None
    wanted = os.environ.get("SCALING_STUDY_MPI", "")
    if version and wanted != "wheel":
        link = answer(str(compiler), "--showme:link")
        return Mpi(True, f"this machine's Open MPI {version[1]}", f"{compiler} {version[1]} {link}")
    if wanted == "system":
        raise SetupFailed("SCALING_STUDY_MPI=system, but there are no mpicxx and mpirun of an Open MPI on PATH.")
    reason = "" if wanted == "wheel" else " (this machine has none that both compiles and launches)"
    return Mpi(False, f"Open MPI from the registry{reason}")


def is_of_an_environment(folder: Path, venv: Path) -> bool:
    """True if programs there were installed into a virtual environment: this one, or any other."""
    return folder == venv / "bin" or os.path.exists(folder.parent / "pyvenv.cfg")  # False where we may not look


def find_cuda() -> Cuda | None:
    """Return the CUDA toolkit where a GPU is present as well; a toolkit alone (a build machine) is not enough."""
    wanted = os.environ.get("SCALING_STUDY_CUDA", "")
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda", Path(nvcc).parents[1] if nvcc else None]
    home = next((Path(home) for home in homes if home and (Path(home) / "bin" / "nvcc").exists()), None)
    if wanted == "0" or home is None:
        return None
    capabilities = gpu_capabilities()
    if not capabilities and wanted != "1":
        return None
    version = re.search(r"release ([\d.]+)", answer(home / "bin" / "nvcc", "--version"))
    return Cuda(home, version[1] if version else "unknown", ",".join(capabilities) or "80,90")


def gpu_capabilities() -> list[str]:
    """Return the compute capabilities of the GPUs here ("90" for a Hopper), none where there is no GPU."""
    listed = answer("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    return sorted({f"{major}{minor}" for major, minor in re.findall(r"(\d+)\.(\d)", listed)})


def cores() -> int:
    """Return how many cores this process may use, which in a container is fewer than there are."""
    return len(os.sched_getaffinity(0))
