"""Run a script whose ranks are killed with -9: `python dies.py WHEN SCRIPT FLAGS`.

steps:10         all ranks, after that many steps
seconds:1.25     rank 0, so long after its training has left its first sign of life, whatever it is doing
save:3:0.004     rank 0, so long after its third save has begun
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from typing import Any

from scaling_study.train import loop
from scaling_study.train.checkpoints import Checkpoints
from scaling_study.train.log import Log
from scaling_study.train.loop import Loop


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def soon(seconds: float) -> None:
    timer = threading.Timer(seconds, die)
    timer.daemon = True
    timer.start()


def after_steps(at: int) -> None:
    made = Loop.made  # by our loop and by a library's own

    def until_then(self: Loop, seconds: list[float]) -> None:
        made(self, seconds)
        if self.progress.steps >= at:
            die()

    Loop.made = until_then  # type: ignore[method-assign]


def after_seconds(seconds: float) -> None:
    progress, signs = Log.progress, [0]

    def timed(self: Log, **values: Any) -> None:
        progress(self, **values)
        signs[0] += 1
        if self.rank == 0 and signs[0] == 1:
            soon(seconds)

    Log.progress = timed  # type: ignore[method-assign]


def in_a_save(number: int, seconds: float) -> None:
    save, begun = Checkpoints.save, [0]

    def counted(self: Checkpoints, *args: Any) -> None:
        begun[0] += 1
        if self.ranks.rank == 0 and begun[0] == number:
            soon(seconds)
        save(self, *args)

    Checkpoints.save = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    (kind, *numbers), sys.argv = sys.argv[1].split(":"), sys.argv[2:]
    match kind:
        case "steps":
            after_steps(int(numbers[0]))
        case "seconds":
            after_seconds(float(numbers[0]))
        case "save":
            in_a_save(int(numbers[0]), float(numbers[1]))
    if kind != "steps":  # a checkpoint after each evaluation, so that many are there to be spoilt
        loop.SAVING_SHARE = float("inf")
    runpy.run_path(sys.argv[0], run_name="__main__")
