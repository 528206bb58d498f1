"""Processes are really started and really killed here."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from eventually import living, stopped, until

from scaling_study.processes import process

SPAWN_IN_A_SESSION_OF_ITS_OWN = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {grandchild!r}], start_new_session=True)
print(child.pid, flush=True)
{then}
"""
SLEEP = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


@pytest.fixture
def run(tmp_path: Path):
    def start(code: str, timeout: float = 60.0, then: Callable[[], None] | None = None) -> tuple[process.Exit, str]:
        """Run `code`, and do something `then`: as soon as it has printed a line."""
        log = tmp_path / "log.txt"
        log.unlink(missing_ok=True)

        def once_it_runs() -> None:
            while not (log.exists() and log.read_text().endswith("\n")):
                time.sleep(0.02)
            then()

        with process.Interruption() as interruption:
            if then:
                threading.Thread(target=once_it_runs, daemon=True).start()
            ended = process.run([sys.executable, "-c", code], {"MARK": "1"}, log, timeout, interruption)
        return ended, log.read_text()

    return start


def test_exit_code_output_and_environment(run):
    ended, log = run("import os, sys; print(os.environ['MARK']); print('err', file=sys.stderr); sys.exit(3)")
    assert (ended.code, ended.timed_out, ended.interrupted) == (3, False, False)
    assert sorted(log.split()) == ["1", "err"]


def test_what_a_process_has_started_by_then_is_stopped_with_it_and_goes_on_with_it():
    """As workers of a DataLoader, which would read ahead, and which an epoch may start anew."""
    parent = subprocess.Popen(["sh", "-c", "sleep 600 & read line; sleep 600 & wait"], stdin=subprocess.PIPE)
    try:
        for children in (1, 2):
            until(lambda children=children: len(psutil.Process(parent.pid).children()) == children)
            pids = [parent.pid, *(child.pid for child in psutil.Process(parent.pid).children())]
            process.signal_trees([parent.pid], signal.SIGSTOP, 0)
            until(lambda pids=pids: all(map(stopped, pids)))
            process.signal_trees([parent.pid], signal.SIGCONT, 0)
            until(lambda pids=pids: not any(map(stopped, pids)))
            parent.stdin.write(b"\n")
            parent.stdin.flush()
    finally:
        process.signal_trees([parent.pid], signal.SIGKILL, 0)
        parent.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("grandchild", [SLEEP, DEAF], ids=["plain", "ignores TERM"])
def test_time_out_ends_the_whole_tree_across_sessions(run, grandchild):
    start = time.monotonic()
    ended, log = run(SPAWN_IN_A_SESSION_OF_ITS_OWN.format(grandchild=grandchild, then=SLEEP), timeout=3.0)
    assert ended.timed_out and ended.code != 0
    assert not living(int(log))
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("what", "lost_sight"),
    [
        ("open('seen/lost', 'w').close(); time.sleep(600)", True),
        ("shutil.rmtree('seen'); time.sleep(600)", True),
        ("open('seen/lost', 'w').close()", False),  # it ends by itself
    ],
)
def test_a_command_that_cannot_be_observed_any_more_is_ended_at_once(
    what: str, lost_sight: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("seen").mkdir()
    code = f"import shutil, time; {what}"
    with process.Interruption() as stop:
        ended = process.run([sys.executable, "-c", code], {}, Path("log.txt"), 300.0, stop, unseen="seen/lost")
    assert (ended.lost_sight, ended.timed_out, ended.interrupted) == (lost_sight, False, False)
    assert ended.seconds < 60 and (ended.code == 0) == (not lost_sight)


@pytest.mark.slow
def test_a_stopped_grandchild_is_ended_too(run):
    stop_itself = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    ended, log = run(SPAWN_IN_A_SESSION_OF_ITS_OWN.format(grandchild=stop_itself, then=SLEEP), timeout=3.0)
    assert ended.timed_out and not living(int(log))


def test_what_a_finished_command_leaves_behind_is_ended_and_counted(run):
    ended, log = run(SPAWN_IN_A_SESSION_OF_ITS_OWN.format(grandchild=SLEEP, then=""))
    assert ended.code == 0 and not ended.timed_out
    assert ended.left_behind == 1 and not living(int(log))
    daemon = "import os, time\nfor _ in range(200):\n    os.fork() and os._exit(0)\n    os.setsid()\ntime.sleep(600)"
    assert all(run(daemon)[0].left_behind for _ in range(3)), "one may fork and end while they are looked at"
    assert run("print('nobody')")[0].left_behind == 0


def test_processes_of_somebody_else_are_left_alone(run):
    other = subprocess.Popen([sys.executable, "-c", SLEEP])
    try:
        run(SLEEP, timeout=0.5)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("number", process.Interruption.SIGNALS)
def test_a_signal_to_the_driver_ends_the_command(run, number):
    spawn = SPAWN_IN_A_SESSION_OF_ITS_OWN.format(grandchild=SLEEP, then=SLEEP)
    ended, log = run(spawn, then=lambda: os.kill(os.getpid(), number))
    assert ended.interrupted and not ended.timed_out
    assert not living(int(log))


def test_words_that_a_closed_terminal_still_had_to_come_change_no_exit_code() -> None:
    """They lie in Python's buffer and go out at its end: into an error, and exit code 120, if nobody took the terminal
    away."""
    code = (
        "import os, select, sys; from scaling_study.processes import process\n"
        "with process.Interruption() as stop:\n"
        "    sys.stdout.write('words'); os.write(1, b'ready')\n"
        "    select.select([stop], [], [], 20)\n"
        "sys.exit(130)"
    )
    master, slave = pty.openpty()
    own_terminal = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{code}"
    child = subprocess.Popen(
        [sys.executable, "-c", own_terminal], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )  # fmt: skip
    os.close(slave)
    assert os.read(master, 5) == b"ready"
    os.close(master)
    assert child.wait(timeout=600) == 130
