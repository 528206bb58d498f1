"""Where a number comes from: the time, the commit, and the settings of the environment that decide it."""

from __future__ import annotations

import datetime
import functools
import os
import subprocess

from scaling_study.settings import CHECKOUT

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
