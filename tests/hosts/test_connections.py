"""Connections to an agent, real but for ssh: it runs on this host, as the child of a shell that stands for sshd."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from eventually import LATEST_SECONDS

from scaling_study.hosts import agent, hosts
from scaling_study.hosts.connections import AgentConnection, AgentConnections, ConnectionLost, other_hosts
from scaling_study.processes import leftovers, process
from scaling_study.processes.process import Exit, Interruption
from scaling_study.settings import CHECKOUT

pytestmark = pytest.mark.slow  # ssh, real daemons and silences
ANOTHER_MACHINE = {"boot_id": "of another machine"}  # where whoever asks is said to be


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    with Interruption() as opened:
        yield opened


@pytest.fixture
def no_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every host is reached by a shell, `away` by none; none takes itself for the one that asks."""
    own = agent.this_process()
    monkeypatch.setattr(agent, "this_process", lambda: {**own, **ANOTHER_MACHINE})
    monkeypatch.setattr(hosts, "ssh_command", lambda host, argv: ["false"] if host == "away" else list(argv))


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A rank of the sweep into tmp_path."""
    rank = subprocess.Popen(["sleep", "600"], env={leftovers.MARK: str(tmp_path)})
    yield rank
    rank.kill()
    rank.wait()


def gone(rank: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return rank.wait(LATEST_SECONDS) == -signal.SIGKILL
    return False


def begin(connection: AgentConnection, tmp_path: Path) -> None:
    asked = {"ask": "begin", "mark": str(tmp_path), "temporary": str(tmp_path / "scaling-study-abc-1")}
    connection.ask({**asked, "asker": ANOTHER_MACHINE}, 30)


def test_an_agent_describes_its_host():
    connection = AgentConnection("here", elsewhere=False)
    asked = {"ask": "describe", "checkout": str(CHECKOUT), "paths": [str(CHECKOUT), "/no/such"]}
    facts = connection.ask({**asked, "asker": agent.this_process()}, 30)
    connection.close()
    assert facts["package"] == str(CHECKOUT / "scaling_study" / "__init__.py")
    assert facts["python"] == ".".join(map(str, sys.version_info[:3])) and facts["missing_paths"] == ["/no/such"]
    assert facts["interfaces"]["lo"] == "127.0.0.1" and facts["is_this"]
    assert len(facts["code"]) > 100 and facts["machine"]["libraries"]["torch"]


def test_a_trial_begins_and_ends_clean(tmp_path, marked):
    connection, folder = AgentConnection("here", elsewhere=False), tmp_path / "scaling-study-abc-1"
    (older := tmp_path / "scaling-study-abc-0").mkdir()
    begin(connection, tmp_path)
    assert gone(marked), "an earlier sweep had left it"
    assert folder.is_dir() and not older.exists()
    rank = subprocess.Popen(["sleep", "600"], env={leftovers.MARK: str(tmp_path)})
    other = subprocess.Popen(["sleep", "600"], env={leftovers.MARK: f"{tmp_path}-other"})
    rank.send_signal(signal.SIGSTOP)
    assert len(connection.ask({"ask": "end"})["ended"]) == 1
    assert gone(rank) and other.poll() is None and not folder.exists()
    other.kill()
    other.wait()
    connection.close()


def test_a_connection_that_is_closed_ends_the_ranks(tmp_path, marked):
    connection = AgentConnection("here", elsewhere=False)
    begin(connection, tmp_path)
    rank = subprocess.Popen(["sleep", "600"], env={leftovers.MARK: str(tmp_path)})
    connection.close()
    assert gone(rank)


def test_silence_ends_the_ranks_too(tmp_path, marked, monkeypatch):
    """As when the network fails: nothing is closed, and nothing more is heard. Two seconds here, eight else."""
    monkeypatch.setattr(agent, "ENTRY", agent.ENTRY.replace("agent.main(", "agent.SILENCE_SECONDS = 2.0; agent.main("))
    connection, start = AgentConnection("here", elsewhere=False), time.monotonic()
    begin(connection, tmp_path)
    rank = subprocess.Popen(["sleep", "600"], env={leftovers.MARK: str(tmp_path)})
    assert gone(rank) and time.monotonic() - start > 2.0
    connection.close()


@pytest.mark.long  # each sweep over hosts of make test-cluster takes longer than a silence may
def test_a_heartbeat_keeps_a_connection_alive(no_ssh, tmp_path, interruption):
    with AgentConnections() as opened, opened.trial(["a"], str(tmp_path), str(tmp_path / "t-1"), interruption) as trial:
        rank = subprocess.Popen(["sleep", "600"], env={leftovers.MARK: str(tmp_path)})
        time.sleep(agent.SILENCE_SECONDS + 2.0)
        assert rank.poll() is None
    assert gone(rank) and trial.with_failed_host(Exit(0, 1.0)) == Exit(0, 1.0)


def test_a_host_that_is_away_is_named_and_nothing_begins(no_ssh, tmp_path, interruption):
    with (
        AgentConnections() as opened,
        pytest.raises(ConnectionLost, match="away: "),
        opened.trial(["a", "away"], str(tmp_path), str(tmp_path / "t-1"), interruption),
    ):
        raise AssertionError("it did")


def command_line(process: psutil.Process) -> list[str]:
    """Empty of one that has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_host_that_fails_wakes_who_waits_and_is_named(no_ssh, tmp_path, interruption):
    with AgentConnections() as opened:
        with opened.trial(["a", "b"], str(tmp_path), str(tmp_path / "t-1"), interruption) as trial:
            rank = subprocess.Popen(["sleep", "600"], env={leftovers.MARK: str(tmp_path)})
            agents = [p for p in psutil.Process().children() if "agent.main" in " ".join(command_line(p))]
            os.kill(agents[1].pid, signal.SIGKILL)
            ended = process.run(["sleep", "600"], {}, tmp_path / "log.txt", 600.0, trial)
            assert ended.interrupted and ended.seconds < 60
        judged = trial.with_failed_host(ended)
        assert judged.node.startswith(("a: ", "b: ")) and not judged.interrupted
        assert gone(rank), "a new agent has seen to it"
        with opened.trial(["a", "b"], str(tmp_path), str(tmp_path / "t-2"), interruption) as again:
            pass
        assert again.with_failed_host(Exit(0, 1.0)).node == ""


def test_who_is_here_is_no_other():
    assert other_hosts(["localhost", "127.0.0.1", "no.such.host.example"]) == ["no.such.host.example"]
