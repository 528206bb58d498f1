"""Failures that pass by themselves, each of them really provoked; test_attempts.py has those that a launcher says."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest

from scaling_study.launch import decisions
from scaling_study.records import outcome

pytestmark = pytest.mark.slow


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("", 0)) as server:
        yield int(server.getsockname()[1])


RANK = """
import datetime, os, sys
import torch.distributed as dist
from scaling_study.worker.script import run

def join(trial):
    {does}

sys.argv = ["x.py", "--record", sys.argv[1]]
run("single", join, build=None)
"""


def kind_of(tmp_path: Path, does: str, **env: str) -> tuple[str, str]:
    """(what it is taken for, what the rank said) of a rank that does this."""
    done = forked.run([sys.executable, "-c", RANK.replace("{does}", does), tmp_path], env=env)
    assert done.returncode != 0
    said = outcome.errors(tmp_path)
    return decisions.failure_kind(said, False, ""), said[0].message


JOIN = 'dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))'


def test_a_port_that_is_really_taken(tmp_path: Path, taken: int) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken), "RANK": "0", "WORLD_SIZE": "1"}
    kind, message = kind_of(tmp_path, JOIN, **env)
    assert kind == "port" and f"port: {taken}" in message


def test_a_port_that_a_script_finds_taken(tmp_path: Path, taken: int) -> None:
    kind, message = kind_of(tmp_path, f'import socket; socket.socket().bind(("", {taken}))')
    assert kind == "port" and message == f"[Errno {errno.EADDRINUSE}] Address already in use"


def test_a_rank_that_finds_nobody(tmp_path: Path) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "1", "WORLD_SIZE": "2"}
    kind, message = kind_of(tmp_path, JOIN, **env)
    assert kind == "rendezvous" and "The client socket has timed out" in message


def test_a_rank_whom_nobody_finds(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    kind, message = kind_of(tmp_path, JOIN, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK="0", WORLD_SIZE="2")
    assert kind == "rendezvous" and "1/2 clients joined" in message


DIES_IN_THE_MIDDLE = """
import datetime, os, sys
import torch.distributed as dist

class Store(dist.Store):  # gives its address to the others, and is gone
    def __init__(self):
        super().__init__()
        self.file = dist.FileStore(sys.argv[1], 2)
    def set(self, key, value):
        self.file.set(key, value)
        if len(value) > 20:
            os._exit(3)
    def get(self, key): return self.file.get(key)
    def add(self, key, value): return self.file.add(key, value)
    def wait(self, keys, timeout=None): return self.file.wait(keys)

dist.init_process_group("gloo", store=Store(), rank=1, world_size=2)
"""


def test_a_peer_that_is_gone_before_gloo_has_connected(tmp_path: Path) -> None:
    store = tmp_path / "store"
    peer = forked.run([sys.executable, "-c", DIES_IN_THE_MIDDLE, store])
    assert peer.returncode == 3, peer.stderr
    join = f'dist.init_process_group("gloo", store=dist.FileStore({str(store)!r}, 2), rank=0, world_size=2, '
    kind, message = kind_of(tmp_path, join + "timeout=datetime.timedelta(seconds=2))")
    assert kind == "rendezvous" and message.startswith("Gloo connectFullMesh failed with")


def test_below_the_shared_clock_nothing_passes(tmp_path: Path) -> None:
    """A module of scaling_study.measure calls what fails, as it does once steps are made."""
    does = (
        "exec(compile('def steps(): raise OSError(98, \"Address already in use\")', 'clock.py', 'exec'),"
        " here := {'__name__': 'scaling_study.measure.clock'})\n"
        "    here['steps']()"
    )
    kind, message = kind_of(tmp_path, does)
    assert message == "[Errno 98] Address already in use" and kind == ""
