"""Ranks started by their framework's own launcher, where that is not torchrun and does not name them in its way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import forked
import pytest

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch.launchers import LAUNCHERS
from scaling_study.machine import installed
from scaling_study.trial import Trial

BIN = Path(sys.executable).parent
OF_MPI = ("horovodrun", "mpirun")


def by_mpi(framework: str) -> bool:
    return FRAMEWORKS[framework].launchers[0] in OF_MPI


def started(
    framework: str, workers: int, program: Sequence[str], env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `python ...` by horovodrun or mpirun; skips the test where the framework is not installed."""
    table = FRAMEWORKS[framework]
    if missing := [name for name in table.needs if not installed(name)]:
        pytest.skip(f"{missing[0]} is not installed")
    launcher = table.launchers[0]
    controller = "mpi" if launcher == "horovodrun" else None
    trial = Trial(framework=framework, workers=workers, launcher=launcher, controller=controller)
    launched = LAUNCHERS[launcher](trial, list(program), BIN, 0)
    return forked.launch(launched.argv, {**launched.env, **env})
