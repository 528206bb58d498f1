"""A sweep that is left alone, for real: terminals are opened and closed, and the sweep is looked at and stopped."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from scaling_study.processes import leftovers
from scaling_study.settings import CHECKOUT

pytestmark = pytest.mark.slow

LONG = """
study: long
parity: false
measure: {warmup_steps: 1, min_steps: 3, min_seconds: 400, max_seconds: 500, repeats: 1}
sweeps:
  - {framework: single, data: synthetic, matrix: {model: [resnet8], batch_per_worker: [4]}}
"""
SWEEP = [sys.executable, str(CHECKOUT / "run_sweep.py"), "long.yaml"]


@pytest.fixture
def long(tmp_path: Path) -> Path:
    (tmp_path / "long.yaml").write_text(LONG)
    return tmp_path


def wait_for(condition: Callable[[], object], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def running(folder: Path) -> list[psutil.Process]:
    return list(leftovers._marked(str((folder / "results" / "long").resolve())))


def trial_runs(folder: Path) -> bool:
    return any(
        "resnet_cifar10.py" in " ".join(p.cmdline()) or "single" in " ".join(p.cmdline()) for p in running(folder)
    )


def in_a_terminal(folder: Path, *argv: str) -> tuple[int, int]:
    """Start a command as the leader of a session on a terminal of its own; its process and the terminal's other end."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvp(argv[0], argv)
    return pid, terminal


def test_closing_the_terminal_stops_a_sweep_cleanly(long):
    pid, terminal = in_a_terminal(long, *SWEEP)
    wait_for(lambda: trial_runs(long))
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert not running(long)


@pytest.mark.long
def test_nohup_means_what_it_says(long):
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    sweep = subprocess.Popen(["nohup", *SWEEP], cwd=long, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: trial_runs(long))
        sweep.send_signal(signal.SIGHUP)
        time.sleep(1.0)
        assert sweep.poll() is None and trial_runs(long)
    finally:
        sweep.terminate()
        assert sweep.wait(300) == 130
