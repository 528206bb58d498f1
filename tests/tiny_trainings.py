"""Trainings of a few steps by the real scripts: what each rank recorded, or how they died."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import forked
from trained import by_mpi, skip_where_missing, started

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.records import store
from scaling_study.records.schema import RankReport
from scaling_study.settings import CHECKOUT

HERE = CHECKOUT / "tests" / "train"
Make = Callable[[str], Path]  # a name -> an empty folder


def run(
    framework: str, workers: int, words: Sequence[str], env: dict[str, str], before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a framework's script with the flags `words`. `before`: a program that runs the script, with its arguments."""
    table = FRAMEWORKS[framework]
    skip_where_missing(framework)
    of_one_process = ["--workers", str(workers)] if table.one_process and workers > 1 else []
    program = [*before, str(CHECKOUT / table.script), *words, *of_one_process]
    if workers == 1 or table.one_process:
        return forked.run([sys.executable, *program], env=env)
    if by_mpi(framework):
        return started(framework, workers, [sys.executable, *program], env)
    return forked.run(["torchrun", "--standalone", "--nproc-per-node", str(workers), *program], env=env)


class Trainings:
    """What ranks recorded of trainings by one recipe; the same training asked for again is not made again."""

    def __init__(self, make: Make, recipe: Sequence[str], **env: str) -> None:
        self.make, self.recipe, self.env = make, recipe, env
        self.known: dict[tuple[object, ...], Path] = {}

    def __call__(
        self, framework: str, workers: int, *flags: str, kill: str = "", before: Sequence[str] = ()
    ) -> list[RankReport]:
        """The reports of all ranks. `kill`: how they die at first (dies.py), to go on from a checkpoint then."""
        record = self.record(framework, workers, *flags, kill=kill, before=before)
        return store.read_ranks(record, 1 if FRAMEWORKS[framework].one_process else workers)

    def record(self, framework: str, workers: int, *flags: str, kill: str = "", before: Sequence[str] = ()) -> Path:
        """The folder that they left."""
        key = framework, workers, flags, kill, tuple(before)
        if key not in self.known:
            self.known[key] = record = self.make("record")
            words = [*self.recipe, *flags, "--record", str(record)]
            if kill:
                done = run(framework, workers, words, self.env, [*before, str(HERE / "dies.py"), kill])
                assert done.returncode != 0 and list((record / "checkpoints").glob("step-*")), done.stderr[-3000:]
            done = forked.ended(run(framework, workers, words, self.env, before))
            assert not (record / "checkpoints").exists()
            (record / "output").write_text(done.stdout)
        return self.known[key]
