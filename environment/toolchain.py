"""What the machine offers to build Horovod with: an MPI, a GPU and its toolkit. Looked at, never changed.

Two environment variables overrule what is found, for those who know better:
`SCALING_STUDY_MPI=system|wheel` and `SCALING_STUDY_CUDA=0|1`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from environment.progress import SetupFailed


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
    """Whether programs there were installed into a virtual environment: this one, or any other."""
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
