"""Trial -> command line and environment, one small pure function per launcher.

Nothing is started here (process.py does) and nothing is looked up but what the arguments say, so the tests
compare literals. A new launcher is one function and one entry in LAUNCHERS.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial


@dataclass(frozen=True)
class Command:
    """What to execute, and the environment variables to set for it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def shell(self, folder: Path | None = None) -> str:
        """One line that works when pasted into a shell, with paths under `folder` shortened to it."""

        def shown(word: str) -> str:
            return os.path.relpath(word, folder) if folder and word.startswith(f"{folder}{os.sep}") else word

        words = [f"{key}={shlex.quote(value)}" for key, value in self.env.items()]
        return " ".join([*words, *(shlex.quote(shown(word)) for word in self.argv)])


def python(trial: Trial, program: Sequence[str], bin: Path) -> Command:
    """One process, started as itself."""
    return Command(tuple(program))


def horovodrun(trial: Trial, program: Sequence[str], bin: Path) -> Command:
    """Horovod's launcher, which takes MPI unless told --gloo; we always say which."""
    return Command((str(bin / "horovodrun"), "-np", str(trial.workers), f"--{trial.controller}", *program))


def mpirun(trial: Trial, program: Sequence[str], bin: Path) -> Command:
    """Plain Open MPI. Ranks pin themselves (ranks.py); a waiting rank yields its core instead of spinning on it."""
    here = bin / "mpirun"  # the environment's own, where the machine has none
    return Command(
        (
            str(here) if here.exists() else "mpirun", "-np", str(trial.workers), "--allow-run-as-root",
            "--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", *program,
        )
    )  # fmt: skip


def torchrun(trial: Trial, program: Sequence[str], bin: Path) -> Command:
    """torch's launcher, on a free port of this host. It starts its own interpreter, which is ours."""
    argv = (str(bin / "torchrun"), "--standalone", "--nproc-per-node", str(trial.workers), *program[1:])
    return Command(argv)


def deepspeed(trial: Trial, program: Sequence[str], bin: Path) -> Command:
    """DeepSpeed's launcher; its default port is the same for everybody, so each trial takes one of its own."""
    port = 20_000 + int(trial.configuration[-4:], 16) % 10_000
    argv = (str(bin / "deepspeed"), "--num_gpus", str(trial.workers), "--master_port", str(port), *program[1:])
    return Command(argv)


LAUNCHERS: Mapping[str, Callable[[Trial, Sequence[str], Path], Command]] = {
    "python": python,
    "horovodrun": horovodrun,
    "mpirun": mpirun,
    "torchrun": torchrun,
    "deepspeed": deepspeed,
}


def command(trial: Trial, record: Path | None = None) -> Command:
    """The command line that runs this trial from anywhere, leaving the ranks' reports in `record`."""
    script = CHECKOUT / FRAMEWORKS[trial.framework].script
    program = [sys.executable, str(script), *trial.to_argv(), *(["--record", str(record)] if record else [])]
    return LAUNCHERS[trial.launcher](trial, program, Path(sys.executable).parent)
