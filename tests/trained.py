"""Short trials of a framework by two workers on a CPU, whose ranks are forked: their reports, or how they end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import forked
import pytest

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch.launchers import command
from scaling_study.machine import installed
from scaling_study.records import store
from scaling_study.records.store import RankReport
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial, Window

P = PARAMETERS = 78_042  # of resnet8: three blocks, and the stem and classifier outside them
OUTSIDE, LAST_BLOCK = 1_114, 57_728
BLOCKS = PARAMETERS - OUTSIDE
ON_CPU = {"lightning_fsdp": [CHECKOUT / "tests/fsdp_on_cpu.py"]}  # its check for a GPU is stepped over
QUICK = Window(1, 2, 0.0, None, 2)


def a_trial(framework: str, **keys: object) -> Trial:
    """Two steps of resnet8 by two workers, unless `keys` say otherwise."""
    known = {"model": "resnet8", "batch_per_worker": 8, "data": "synthetic", "window": QUICK, "workers": 2}
    known |= {"launcher": "torchrun", "device": "cpu", "cores_per_worker": 1}
    return Trial(framework=framework, **{**known, **keys})  # type: ignore[arg-type]


def ran(trial: Trial, folder: Path, *before: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a trial's command, `before`: a program that runs its script. Skips where the framework is not installed."""
    if absent := [name for name in FRAMEWORKS[trial.framework].needs if not installed(name)]:
        pytest.skip(f"{absent[0]} is not installed")
    line = command(trial, record=folder)
    script = line.argv.index(str(CHECKOUT / FRAMEWORKS[trial.framework].script))
    argv = [*line.argv[:script], *map(str, before), *line.argv[script:]]
    return forked.run(argv, env={**line.env, "CUDA_VISIBLE_DEVICES": "", **env})


def ranks_of(trial: Trial, folder: Path, *before: str | Path) -> list[RankReport]:
    """The reports of a trial, which must end well."""
    done = ran(trial, folder, *before)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return store.read_ranks(folder, trial.processes)
