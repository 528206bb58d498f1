"""`--detach`: the same command again in a session of its own, which lives on when the terminal is closed."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scaling_study.errors import HostError, StudyError
from scaling_study.processes import process
from scaling_study.records import results
from scaling_study.settings import CHECKOUT
from scaling_study.study.plan import Plan

LOG = "sweep.log"  # in results/<study>
PATIENCE_SECONDS = 60.0  # until the other process must have taken the results folder


def start(plan: Plan, under: Path, words: Sequence[str], shows: bool) -> int:
    """Start it, see it hold the results folder, and say how to look at it and how to stop it. Returns an exit code.

    `words` follow run_sweep.py. `plan` was made here first, so that what is wrong with a study is shown here and not in
    a log. Raises StudyError and HostError like a sweep.
    """
    if shows:
        raise StudyError(["--detach starts a sweep that nobody sees: leave out --dry-run and --json"])
    folder = under / plan.study.name
    with results.locked(folder):  # another run would be noticed by nobody but the log
        pass
    log = folder / LOG
    sweep = process.start_detached([sys.executable, str(CHECKOUT / "run_sweep.py"), *words], log)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while results.holder(folder) != sweep.pid and sweep.poll() is None:
        if time.monotonic() > deadline:
            raise HostError(f"process {sweep.pid} was started but has not begun its sweep; {log} may say why")
        time.sleep(0.05)
    if sweep.poll() not in (None, 0):
        raise HostError(f"the sweep ended at once with exit code {sweep.returncode}; {log} says why")
    shown = shlex.quote(os.path.relpath(log))
    print(f"The sweep goes on as process {sweep.pid}, also when this terminal is closed.")
    print(f"  look:  tail -f {shown}")
    print(f"  stop:  kill {sweep.pid}    what is finished is kept; the same command goes on")
    return 0
