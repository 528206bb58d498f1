"""What the machine itself must have, since no root is asked for: found missing, it is one sentence."""

from __future__ import annotations

import importlib.util
import os
import shutil
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
