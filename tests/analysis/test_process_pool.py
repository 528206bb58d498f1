"""Tasks by several processes: all that was made comes back, whoever dies; what is missing is the caller's to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from analysis import execution
from scaling_study.settings import CHECKOUT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="one process does it all there")

HERE = os.getpid()


def test_every_task_is_done_once_by_more_than_one_process(tmp_path: Path) -> None:
    def task(number: int) -> tuple[int, int]:
        (tmp_path / str(os.getpid())).touch()
        deadline = time.monotonic() + 300
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:  # none is done before both have begun
            time.sleep(0.01)
        return number * number, os.getpid()

    made = execution.run_tasks(task, range(40), 2)
    assert {number: square for number, (square, _) in made.items()} == {n: n * n for n in range(40)}
    assert len({who for _, who in made.values()}) == 2 and HERE not in {who for _, who in made.values()}


def test_each_process_keeps_to_the_order_that_is_asked_for() -> None:
    order = [3, 7, 1, 0, 2, 6, 5, 4]
    made = execution.run_tasks(lambda number: (os.getpid(), time.monotonic()), order, 2)
    for process in {who for who, _ in made.values()}:
        its = [number for number in order if made[number][0] == process]
        assert its == sorted(its, key=lambda number: made[number][1])


@pytest.mark.parametrize("processes", [-1, 0, 1])
def test_one_process_leaves_all_of_it_to_the_caller(processes: int) -> None:
    assert execution.run_tasks(lambda number: number, range(4), processes) == {}


def test_nothing_to_do_is_done() -> None:
    assert execution.run_tasks(lambda number: number, [], 2) == {}


@pytest.mark.slow
def test_where_a_process_dies_what_was_done_stays_and_the_rest_is_left_to_the_caller(tmp_path: Path) -> None:
    def task(number: int) -> int:
        (tmp_path / str(number)).touch()
        if number == 3:
            time.sleep(3)  # the results of those before are home
            os._exit(9)
        return number

    before = psutil.Process().children()
    made = execution.run_tasks(task, range(4), 2)
    assert made == {0: 0, 1: 1, 2: 2}
    assert psutil.Process().children() == before


def test_where_no_process_can_be_forked_all_is_left_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, forks = os.fork, []

    def one_fork() -> int:
        if forks:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        forks.append(True)
        return fork()

    before = psutil.Process().children()
    monkeypatch.setattr(os, "fork", one_fork)
    assert execution.run_tasks(lambda number: number, range(4), 2) == {}
    forked = [child for child in psutil.Process().children() if child not in before]
    assert psutil.wait_procs(forked, timeout=60)[1] == []


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from analysis.execution import run_tasks\n"
        "def task(number):\n"
        "    Path(sys.argv[1], str(os.getpid())).touch()\n"
        "    time.sleep(600)\n"
        "run_tasks(task, range(4), 2)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=CHECKOUT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(300) == -signal.SIGINT
    assert not any(psutil.pid_exists(int(path.name)) for path in tmp_path.iterdir())


def test_what_one_raises_is_raised_and_nobody_works_on() -> None:
    def task(number: int) -> None:
        if number == 0:
            raise OSError(28, "No space left on device")
        time.sleep(600)

    before = psutil.Process().children()
    with pytest.raises(OSError, match="No space left"):
        execution.run_tasks(task, range(4), 2)
    assert psutil.Process().children() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nobody_outlives_who_began_it(tmp_path: Path, number: signal.Signals) -> None:
    """Not even who has more to say than a pipe holds, to nobody."""
    code = (
        "import os, sys, time; from pathlib import Path; from analysis.execution import run_tasks\n"
        "def task(number):\n"
        "    Path(sys.argv[1], str(os.getpid())).touch()\n"
        "    time.sleep(2)\n"
        "    return bytes(5_000_000)\n"
        "run_tasks(task, range(250), 3)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=CHECKOUT)
    deadline = time.monotonic() + 300
    while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    below = [psutil.Process(int(path.name)) for path in tmp_path.iterdir()]
    assert len(below) == 3
    parent.send_signal(number)
    assert parent.wait(300) == -number
    _, alive = psutil.wait_procs(below, timeout=120)
    assert not alive


def test_more_than_a_pipe_holds_comes_back_whole() -> None:
    made = execution.run_tasks(lambda number: bytes([number]) * 3_000_000, range(6), 2)
    assert all(made[number] == bytes([number]) * 3_000_000 for number in range(6))


def test_processes_are_no_more_than_cores() -> None:
    assert 1 <= execution.available_processes() <= min(execution.MOST_PROCESSES, os.cpu_count() or 1)
