"""Horovod as a wheel for this checkout, compiled once.

No wheel is published, and the published source does not compile against a current torch (README.md explains each
hunk of our patch). A wheel is good for one interpreter, torch, MPI, CUDA and patch: its folder is named after them,
so that it is built once for each set and never used for another.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from environment.horovod_source import PATCH, SHA256, VERSION, apply, download, unpack
from environment.progress import run, step
from environment.toolchain import Cuda, Mpi, answer, cores

BYTES_PER_COMPILER = 2 * 2**30  # what g++ takes for one file that includes torch's headers


@dataclass(frozen=True)
class Recipe:
    """All that decides what is in the wheel."""

    venv: Path
    torch: str
    mpi: Mpi
    cuda: Cuda | None

    def key(self) -> str:
        """Return the name of the folder that holds this very wheel."""
        parts = [sysconfig.get_config_var("SOABI"), self.torch, self.mpi, self.cuda, SHA256, PATCH.read_text()]
        return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def recipe(venv: Path, mpi: Mpi, cuda: Cuda | None) -> Recipe:
    """Return what to build in an environment that has torch, and MPI where the machine has none."""
    if not mpi.system:
        mpi = replace(mpi, identity=answer(venv / "bin" / "mpicxx", "--showme:link"))
    return Recipe(venv, printed(venv, "import importlib.metadata as m; print(m.version('torch'))"), mpi, cuda)


def wheel(recipe: Recipe, cache: Path, environ: Mapping[str, str]) -> Path:
    """Return the wheel of this recipe, built if there is none yet.

    Raises:
        SetupFailed: the source cannot be had or does not compile.
    """
    folder = cache / "wheels" / recipe.key()
    for built in folder.glob("*.whl"):
        return built
    python, log = recipe.venv / "bin" / "python", cache / "logs" / "horovod.log"
    log.unlink(missing_ok=True)
    kinds = "Gloo, MPI and NCCL" if recipe.cuda else "Gloo and MPI"
    with step(f"compiling Horovod {VERSION} with {kinds}"), tempfile.TemporaryDirectory(prefix="horovod-") as made:
        scratch = Path(made)
        source = unpack(download(python, cache / "sources", log, environ), scratch)
        apply(PATCH, source, log)
        pip = [
            python,
            "-m",
            "pip",
            "wheel",
            "--verbose",
            "--no-build-isolation",
            "--no-deps",
            "--wheel-dir",
            scratch / "wheel",
        ]
        run([*pip, "."], log, {**environ, **flags(recipe, scratch)}, folder=source)
        # Copied to the side and renamed: an interrupted copy must not pass for a wheel.
        half = folder.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(scratch / "wheel", half)
        half.rename(folder)
    return next(folder.glob("*.whl"))


def flags(recipe: Recipe, scratch: Path) -> dict[str, str]:
    """Return the environment variables that Horovod's build reads."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    always = {
        # Horovod takes them for granted, which headers of GCC before 13 brought with others.
        "CXXFLAGS": f"{os.environ.get('CXXFLAGS', '')} -include string -include cstdint".strip(),
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "MAKEFLAGS": f"-j{max(1, min(cores(), memory // BYTES_PER_COMPILER))}",
    }
    if not recipe.mpi.system:
        always["MPI_HOME"] = str(recipe.venv)
    if recipe.cuda is None:
        return always
    always |= {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(recipe.cuda.home),
        "CUDA_HOME": str(recipe.cuda.home),
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": recipe.cuda.architectures,
    }
    # torch's wheel carries NCCL, without the unversioned name that a linker looks for; else CMake finds the machine's.
    nccl = answer(recipe.venv / "bin" / "python", "-c", "import nvidia.nccl as nccl; print(*nccl.__path__)")
    if not nccl:
        return always
    (scratch / "nccl").mkdir()
    (scratch / "nccl" / "libnccl.so").symlink_to(Path(nccl) / "lib" / "libnccl.so.2")
    return {**always, "HOROVOD_NCCL_INCLUDE": f"{nccl}/include", "HOROVOD_NCCL_LIB": str(scratch / "nccl")}


def printed(venv: Path, code: str) -> str:
    """Return what a line of Python prints in the environment."""
    return subprocess.run(
        [venv / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
