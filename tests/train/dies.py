"""Run a script whose ranks are killed with -9 after so many steps: `python dies.py STEPS SCRIPT FLAGS`."""

from __future__ import annotations

import os
import runpy
import signal
import sys

from scaling_study.train.loop import Loop

if __name__ == "__main__":
    at, sys.argv = int(sys.argv[1]), sys.argv[2:]
    block = Loop.block

    def until_then(loop: Loop, stop: int) -> None:
        block(loop, stop)
        if loop.progress.steps >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    Loop.block = until_then  # type: ignore[method-assign]
    runpy.run_path(sys.argv[0], run_name="__main__")
