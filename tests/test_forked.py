"""A shadow ends as the program that it stands for, and the program with it: what launchers rely on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_starts")]
PROGRAM = """
# It needs torch, says its text: so a fork of what has torch loaded runs it.
import os, sys, time
print(os.getpid(), "torch" in sys.modules, os.getcwd(), sorted(os.sched_getaffinity(0)), flush=True)
if sys.argv[1] == "leave":
    sys.exit(int(sys.argv[2]))
if sys.argv[1] == "die":
    os.kill(os.getpid(), int(sys.argv[2]))
if sys.argv[1] == "fail":
    raise ValueError("the planted bug")
time.sleep(600)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


@pytest.mark.parametrize(
    ("how", "code"),
    [(("leave", "7"), 7), (("die", "15"), -15), (("die", "9"), -9), (("fail",), 1), (("leave", "0"), 0)],
)
def test_it_ends_as_its_program_does(program: list[str], tmp_path: Path, how: tuple[str, ...], code: int) -> None:
    core = min(os.sched_getaffinity(0))
    shadow = subprocess.Popen(
        ["taskset", "-c", str(core), *program, *how],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said, errors = shadow.communicate(timeout=60)
    pid, rest = said.split(maxsplit=1)
    assert shadow.returncode == code and int(pid) != shadow.pid
    assert rest == f"True {tmp_path} [{core}]\n"
    assert ("ValueError: the planted bug" in errors) == (how[0] == "fail")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_program_ends_with_it(program: list[str], number: signal.Signals) -> None:
    with subprocess.Popen([*program, "stay"], stdout=subprocess.PIPE, text=True) as shadow:
        assert shadow.stdout
        ended = os.pidfd_open(int(shadow.stdout.readline().split()[0]))
        shadow.send_signal(number)
        shadow.stdout.read()  # to the end of all who could write there
    assert shadow.returncode == -number
    assert select.select([ended], [], [], 60)[0], "the program lives on"
    os.close(ended)
