"""`--detach`: the same command again in a new session, which survives the closing of the terminal."""

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
    """Start it, wait until it holds the results folder, print how to follow and stop it. Returns an exit code.

    `words` follow run_sweep.py. `plan` was made here first, so that what is wrong with a study is shown here and not in
    a log. Raises StudyError and HostError like a sweep.
    """
    if shows:
        raise StudyError(["--detach cannot be combined with --dry-run or --json"])
    folder = under / plan.study.name
    with results.locked(folder):  # else the error of a second run would only be in its log
        pass
    log = folder / LOG
    sweep = process.start_detached([sys.executable, str(CHECKOUT / "run_sweep.py"), *words], log)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while results.holder(folder) != sweep.pid and sweep.poll() is None:
        if time.monotonic() > deadline:
            raise HostError(f"process {sweep.pid} has not started the sweep within {PATIENCE_SECONDS:.0f} s; see {log}")
        time.sleep(0.05)
    if sweep.poll() not in (None, 0):
        raise HostError(f"the sweep exited immediately with code {sweep.returncode}; see {log}")
    shown = shlex.quote(os.path.relpath(log))
    print(f"The sweep runs in the background as process {sweep.pid}; this terminal can be closed.")
    print(f"  follow:  tail -f {shown}")
    print(f"  stop:    kill {sweep.pid}    finished trials are kept; the same command resumes")
    return 0
