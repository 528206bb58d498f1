"""Horovod as a wheel for this checkout: its source fetched, verified, patched, and compiled once.

No wheel is published, and the published source does not compile against a current torch (the patch explains each
change at its top). A wheel is good for one interpreter, torch, MPI, CUDA and patch: its folder is named after them,
so that it is built once for each set and never used for another.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from environment.machine import Cuda, Mpi, answer, cores
from environment.progress import SetupFailed, run, step

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCH = Path(__file__).with_name(f"horovod-{VERSION}.patch")
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
        pip = [python, "-m", "pip", "wheel", "--verbose", "--no-build-isolation", "--no-deps"]
        run([*pip, "--wheel-dir", scratch / "wheel", "."], log, {**environ, **flags(recipe, scratch)}, folder=source)
        # Copied to the side and renamed: an interrupted copy must not pass for a wheel.
        half = folder.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(scratch / "wheel", half)
        half.rename(folder)
    return next(folder.glob("*.whl"))


def download(python: Path, sources: Path, log: Path, environ: Mapping[str, str]) -> Path:
    """Fetch the source archive with the machine's own pip settings and verify it."""
    archive = sources / f"horovod-{VERSION}.tar.gz"
    if not archive.exists():
        # pip reads the archive's metadata, for which Horovod's setup.py wants the build requirements at hand.
        pip = [python, "-m", "pip", "download", "--no-binary", "horovod", "--no-deps", "--no-build-isolation"]
        run([*pip, f"horovod=={VERSION}", "--dest", sources], log, environ)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        archive.unlink()
        raise SetupFailed(
            f"{archive.name} has SHA-256 {found}, not {SHA256}: it is not the archive that was published."
        )
    return archive


def unpack(archive: Path, scratch: Path) -> Path:
    """Unpack the source archive outside of any repository and return its folder."""
    # Python before 3.11.4 has no filters; the archive is verified, so that they are a second lock on the same door.
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(scratch, filter="data")
        else:
            tar.extractall(scratch)
    return scratch / f"horovod-{VERSION}"


def apply(patch: Path, source: Path, log: Path) -> None:
    """Apply the patch, whole or not at all.

    Raises:
        SetupFailed: a hunk does not fit, or the tool claims success and a changed line is not there.
    """
    # Inside a repository `git apply` skips, in silence, every file that the repository does not know.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ = {**inherited, "GIT_CEILING_DIRECTORIES": str(source.parent)}
    tool = ["patch", "--batch", "--fuzz=0", "-p1", "-i"] if shutil.which("patch") else ["git", "apply"]
    run([*tool, patch], log, environ, folder=source)
    for path, line in added_lines(patch.read_text()):
        if line not in (source / path).read_text().splitlines():
            raise SetupFailed(f"{patch.name} did not take: {path} lacks {line.strip()!r}")


def added_lines(patch: str) -> list[tuple[str, str]]:
    """Return (file, line) for every line that a unified diff adds."""
    lines, path = [], ""
    for line in patch.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif line.startswith("+"):
            lines.append((path, line[1:]))
    return lines


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
