"""Drivers and supervisors are really killed here, with real processes below them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from eventually import until

from scaling_study.launch import supervisor
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.processes import leftovers, process

pytestmark = pytest.mark.slow  # real processes are started and killed

# Two ranks in sessions of their own, one of them deaf to TERM; then the launcher waits for them.
LAUNCHER = """
import subprocess, sys
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open(%r, 'w').close(); time.sleep(600)"
ranks = [
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    for code in (deaf % (sys.argv[1] + "/deaf"), "import time; time.sleep(600)")
]
[rank.wait() for rank in ranks]
"""
DRIVER = f"""
import sys
from pathlib import Path
from scaling_study.processes.process import Interruption
from scaling_study.launch.supervisor import SupervisorClient
folder = Path(sys.argv[1])
with Interruption() as interruption, SupervisorClient(folder, interruption) as client:
    ended = client.run([sys.executable, "-c", {LAUNCHER!r}, str(folder)], {{}}, folder / "log.txt", 600)
    (folder / "said").write_text(repr(ended))
    again = client.run([sys.executable, "-c", "print('again')"], {{}}, folder / "again.txt", 600)
    (folder / "again").write_text(repr(again.code))
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[SupervisorClient]:
    with process.Interruption() as interruption, SupervisorClient(tmp_path, interruption) as opened:
        yield opened


def test_a_process_that_carries_the_mark_of_this_folder_belongs_to_its_command(
    client: SupervisorClient, tmp_path: Path
) -> None:
    """As one that sshd of this host has started for it. What is below the supervisor: test_command_group.py."""
    for mark, belongs in ((tmp_path, True), (tmp_path / "other", False)):
        environment = {**os.environ, leftovers.MARK: str(mark)}
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environment) as process:
            until(lambda pid=process.pid: leftovers.MARK in psutil.Process(pid).environ())  # it has begun
            assert client.has_started(process.pid) is belongs
            process.kill()
    assert not client.has_started(process.pid), "it is gone"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a driver whose trial is running, two ranks and all."""
    started = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)]))
        until((tmp_path / "deaf").exists)
        return started[0]

    yield start
    for one in started:
        one.kill()
        one.wait()
    leftovers.clean(tmp_path)


def once_it_runs(folder: Path, then: Callable[[], object]) -> None:
    """Do something `then`: as soon as the launcher's ranks run. One of them has left a file."""

    def wait() -> None:
        until((folder / "deaf").exists)
        then()

    threading.Thread(target=wait, daemon=True).start()


def marked(folder: Path) -> list[psutil.Process]:
    return list(leftovers._marked(str(folder.resolve())))


def the_supervisor(folder: Path) -> psutil.Process:
    (found,) = [p for p in marked(folder) if supervisor.ENTRY in p.cmdline()]
    return found


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


# --- what it runs


def test_one_supervisor_serves_all_trials_from_a_session_of_its_own(client, tmp_path):
    code = "import os; print(os.getppid(), os.getsid(os.getppid()))"
    for name in ("one", "two"):
        client.run(python(code), {}, tmp_path / name, 60)
    parent, session = map(int, (tmp_path / "one").read_text().split())
    assert parent == session != os.getsid(0)
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()


def test_what_a_trial_leaves_in_the_temporary_folder_goes_with_it(client, tmp_path):
    client.run(python("import tempfile; print(tempfile.mkdtemp())"), {}, tmp_path / "log", 60)
    left = Path((tmp_path / "log").read_text().strip())
    assert left.parent.name.startswith("scaling-study-") and not left.parent.exists()


def test_no_log_to_be_had_is_said(client, tmp_path):
    ended = client.run(python("pass"), {}, tmp_path / "gone" / "log", 60)
    assert ended.code is None and ended.error.endswith("gone/log: No such file or directory")
    assert client.run(python("pass"), {}, tmp_path / "log", 60).code == 0


@pytest.mark.parametrize("number", process.Interruption.SIGNALS)
def test_a_signal_to_the_driver_ends_the_trial(client, tmp_path, number):
    once_it_runs(tmp_path, lambda: os.kill(os.getpid(), number))
    ended = client.run([*python(LAUNCHER), str(tmp_path)], {}, tmp_path / "log", 60)
    assert ended.interrupted and not ended.timed_out and client.signal == number
    assert [p.name() for p in marked(tmp_path)] == [the_supervisor(tmp_path).name()]


# --- who is killed


def test_nothing_outlives_a_killed_driver(driver, tmp_path):
    driver().kill()
    until(lambda: not marked(tmp_path))  # within 10 s: tests/faults


def test_a_killed_supervisor_costs_the_running_trial_only(driver, tmp_path):
    running = driver()
    the_supervisor(tmp_path).kill()
    assert running.wait(300) == 0
    assert "lost='was ended by signal 9'" in (tmp_path / "said").read_text()
    assert (tmp_path / "again").read_text() == "0" and not marked(tmp_path)


def test_a_supervisor_that_does_not_answer_is_replaced(driver, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "ANSWER_SECONDS", 0.5)
    with process.Interruption() as interruption, SupervisorClient(tmp_path, interruption) as client:
        stop_it = "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(600)"
        ended = client.run(python(stop_it), {}, tmp_path / "log", 3.0)
        assert ended.lost == "did not answer" and not marked(tmp_path)
        assert client.run(python("pass"), {}, tmp_path / "log", 60).code == 0


def test_what_outlived_driver_and_supervisor_is_ended_by_the_next(driver, tmp_path):
    running, its_supervisor = driver(), the_supervisor(tmp_path)
    its_supervisor.suspend()  # or it would see the driver die and begin
    running.kill()
    its_supervisor.kill()
    until(lambda: len(marked(tmp_path)) == 3)  # the launcher and two ranks, and nothing of those two any more
    with process.Interruption() as interruption, SupervisorClient(tmp_path, interruption):
        assert not marked(tmp_path)
