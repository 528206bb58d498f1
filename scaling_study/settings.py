"""Checkout, cache, data, commit, and the environment variables that decide a number."""

from __future__ import annotations

import datetime
import functools
import os
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = CHECKOUT / ".cache"
PROFILE = "SCALING_STUDY_PROFILE"  # the folder for the traces of a trial that is profiled (profiling.py)


def setting(name: str, default: str) -> str:
    """An environment variable, else its line in `.env` (current folder, then the checkout), else `default`."""
    if value := os.environ.get(name):
        return value
    for folder in (Path.cwd(), CHECKOUT):
        path = folder / ".env"
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                key, equals, value = line.partition("=")
                if equals and key.strip().removeprefix("export ").strip() == name:
                    return value.strip().strip("\"'")
    return default


def data_root() -> Path:
    """The folder that holds the data sets: DATA_ROOT, by default `data/` in the checkout."""
    return Path(setting("DATA_ROOT", str(CHECKOUT / "data"))).expanduser()


def data_path() -> Path | None:
    """The folder that holds a tree of images, train/<class>/*: DATA_PATH; there is no default."""
    path = setting("DATA_PATH", "")
    return Path(path).expanduser() if path else None


DECISIVE = ("OMP_", "MKL_", "KMP_", "GOMP_", "HOROVOD_", "OMPI_MCA_", "NCCL_", "CUDA_", "TORCH_", "PYTORCH_")


def utc_now() -> str:
    """ISO 8601, whole seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@functools.cache
def commit() -> str:
    """This project's commit, "+changes" if the tree is not clean, "" outside a checkout."""
    asked = ["git", "-C", str(CHECKOUT), "describe", "--always", "--abbrev=12", "--dirty=+changes", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git on this machine
        return ""


def environment() -> dict[str, str]:
    """Variables that change how fast a trial runs without standing on its command line."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(DECISIVE)}
