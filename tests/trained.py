"""Short trials of a framework by two workers on a CPU: their reports, how they end, or what a parity gate says of them.

ranks_of(a_trial("torch_ddp", allreduce="fp16"), tmp_path)                  its ranks are forked (forked.py)
judged(a_trial("torch_fsdp2", model=...), tmp_path)["verdict"]              the first gate that it stands behind
ranks_of(a_trial(...), tmp_path, after_doing(tmp_path, "print(1)"))         with something done first in each rank
started("horovod", 2, ["python", "script.py", ...], {})                     by the launcher of the framework
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import forked
import pytest

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.launch.launchers import LAUNCHERS, command
from scaling_study.machine import installed
from scaling_study.ranks import in_full
from scaling_study.records import store
from scaling_study.records.schema import RankReport
from scaling_study.settings import CHECKOUT
from scaling_study.study import support
from scaling_study.trial import Trial, Window

P = PARAMETERS = 78_042  # of resnet8: three blocks, and the stem and classifier outside them
OUTSIDE, LAST_BLOCK = 1_114, 57_728
BLOCKS = PARAMETERS - OUTSIDE
ON_CPU = {"lightning_fsdp": [CHECKOUT / "tests/fsdp_on_cpu.py"]}  # its check for a GPU is stepped over
OF_MPI = ("horovodrun", "mpirun")  # launchers that do not name ranks in torchrun's way
QUICK = Window(1, 2, 0.0, None, 2)
THE_SCRIPT = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def skip_where_missing(framework: str) -> None:
    """Skip a test where a library of the framework is not installed."""
    if missing := [name for name in FRAMEWORKS[framework].needs if not installed(name)]:
        pytest.skip(f"{missing[0]} is not installed")


def a_trial(framework: str, **keys: object) -> Trial:
    """Two steps of resnet8 by two workers, unless `keys` say otherwise."""
    known = {"model": "resnet8", "batch_per_worker": 8, "data": "synthetic", "window": QUICK, "workers": 2}
    known |= {"launcher": "torchrun", "device": "cpu", "cores_per_worker": 1}
    return Trial(framework=framework, **{**known, **keys})  # type: ignore[arg-type]


def ran(trial: Trial, folder: Path, *before: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a trial's command, `before`: a program that runs its script. A launcher of MPI is the real one."""
    skip_where_missing(trial.framework)
    line = command(trial, record=folder)
    script = line.argv.index(str(CHECKOUT / FRAMEWORKS[trial.framework].script))
    argv = [*line.argv[:script], *map(str, before), *line.argv[script:]]
    run = forked.launch if trial.launcher in OF_MPI else forked.run
    return run(argv, env={**line.env, "CUDA_VISIBLE_DEVICES": "", **env})


def after_doing(folder: Path, does: str) -> Path:
    """A program that does something, and then runs the script whose command line follows."""
    path = folder / "first.py"
    path.write_text(does + THE_SCRIPT)
    return path


def ranks_of(trial: Trial, folder: Path, *before: str | Path) -> list[RankReport]:
    """The reports of a trial, which must end well."""
    forked.ended(ran(trial, folder, *before))
    return store.read_ranks(folder, trial.processes)


def gate_of(trial: Trial) -> Trial:
    """The first gate that a configuration stands behind, of two steps."""
    skip_where_missing(trial.framework)
    gate = next(support.gates_of(in_full(trial) if FRAMEWORKS[trial.framework].shares_batches else trial))
    return replace(gate, window=Window(0, 2, 0.0, None, 2))


def ask_for(gate: Trial, folder: Path) -> None:
    """As a driver does, for what judges its traces."""
    store.write_json(folder / "trial.json", {**gate.to_dict(), "window": asdict(gate.window)})


def judged(trial: Trial, folder: Path, *before: str | Path) -> dict[str, Any]:
    """What the gate of a configuration says, once its ranks have trained."""
    gate = gate_of(trial)
    ask_for(gate, folder)
    ranks_of(gate, folder, *before)
    forked.ended(forked.run(["python", "-m", "scaling_study.parity.compare", folder]))
    answer: dict[str, Any] = store.load(folder / "parity.json")
    return answer


def by_mpi(framework: str) -> bool:
    return FRAMEWORKS[framework].launchers[0] in OF_MPI


def started(framework: str, workers: int, program: Sequence[str], env: Mapping[str, str]) -> Any:
    """Run `python ...` by the framework's own launcher, where that does not name ranks in torchrun's way."""
    skip_where_missing(framework)
    launcher = FRAMEWORKS[framework].launchers[0]
    controller = "mpi" if launcher == "horovodrun" else None
    trial = Trial(framework=framework, workers=workers, launcher=launcher, controller=controller)
    launched = LAUNCHERS[launcher](trial, list(program), Path(sys.executable).parent, 0)
    return forked.launch(launched.argv, {**launched.env, **env})
