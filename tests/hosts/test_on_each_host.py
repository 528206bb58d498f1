"""One command on each host, for real, where all hosts are this one: no ssh is needed (tests/cluster has the others)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from eventually import gone, until

from scaling_study.settings import CHECKOUT

pytestmark = pytest.mark.slow  # real processes are started and killed

HERE = "localhost:1,127.0.0.1:2"
COMMAND = [sys.executable, "-m", "scaling_study.hosts.on_each_host"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT), **environment}
    return subprocess.run([*COMMAND, *words], env=env, capture_output=True, text=True, timeout=600, check=False)


def test_each_host_gets_its_number_and_the_same_hostfile():
    done = run(HERE, "sh", "-c", 'echo "$0 $1" $(cat $1 | tr "\\n" ";")', "{node}", "{hostfile}")
    first, second = sorted(line.split(maxsplit=2) for line in done.stdout.splitlines())
    assert (first[0], second[0]) == ("0", "1") and done.returncode == 0
    assert first[2] == second[2] == "localhost slots=1;127.0.0.1 slots=2;"
    assert not Path(first[1]).exists(), "it goes with the command"


def test_only_variables_that_travel_are_seen():
    seen = run("-x", "MINE", HERE, "env", OMP_NUM_THREADS="{node}", MINE="of {node}").stdout
    assert seen.count("OMP_NUM_THREADS={node}\n") == 2 and "MINE=of 0\n" in seen and "MINE=of 1\n" in seen


def test_commands_run_where_this_one_does(tmp_path):
    done = subprocess.run(
        [*COMMAND, "localhost:1", "pwd"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{tmp_path}\n"


def test_the_first_to_fail_ends_the_others_and_gives_its_code():
    start = time.monotonic()
    done = run(HERE, "sh", "-c", "[ $0 = 0 ] && exec sleep 600; exit 7", "{node}")
    assert (done.returncode, done.stderr) == (7, "127.0.0.1: ended with exit code 7\n")
    assert time.monotonic() - start < 120


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["h1:0", "true"], "slots=0"),
        (["localhost:1"], "usage: "),
        ([], "usage: "),
        (["localhost:1", "no-such-command"], "no-such-command: No such file or directory"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(words, said):
    done = run(*words)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_it(number, tmp_path):
    """Not even what a command has put into a session of its own, deaf to TERM, or stopped."""
    ranks = "setsid sh -c 'trap \"\" TERM; touch $0; sleep 600' %s & setsid sleep 600 & kill -STOP $!; wait" % (
        tmp_path / "deaf"
    )
    started = subprocess.Popen(
        [*COMMAND, HERE, "sh", "-c", ranks], env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT)}
    )
    until((tmp_path / "deaf").exists)
    until(lambda: len(psutil.Process(started.pid).children(recursive=True)) >= 6)
    below = psutil.Process(started.pid).children(recursive=True)
    started.send_signal(number)
    assert started.wait(300) == 128 + number
    assert not gone(below)
