"""Which failures pass by themselves: the libraries' own words, quoted, and each of them really provoked.

test_attempts.py has those that a launcher says.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest

from scaling_study.launch import decisions
from scaling_study.records import outcome

LISTEN = (
    "The server socket has failed to listen on any local network address. port: 46617, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)
GLOO = "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.h:311] Connect timeout"
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system error, NCCL version "
    "2.30.7\nncclSystemError: System call or external library call failed or device error.\nLast error:\n"
    "ncclOsSocketStartConnect: connect to 10.0.0.2<43287> failed : Connection refused"
)


def error(type: str, message: str, stepping: Any = False, rank: int = 0) -> dict[str, Any]:
    return {"rank": rank, "at": float(rank), "type": type, "message": message, "traceback": "", "stepping": stepping}


SAID = [
    ("port", error("DistNetworkError", LISTEN)),
    ("port", error("OSError", "[Errno 98] Address already in use")),
    ("rendezvous", error("DistNetworkError", "The client socket has timed out after 3000ms while trying to connect to (127.0.0.1, 1).")),  # noqa: E501
    ("rendezvous", error("DistStoreError", "Timed out after 4 seconds waiting for clients. 1/2 clients joined.")),
    ("rendezvous", error("RuntimeError", GLOO)),
    ("rendezvous", error("DistBackendError", NCCL)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "said"), SAID)
def test_a_sentence_of_the_table_passes(kind: str, said: dict[str, Any]) -> None:
    assert decisions.failure_kind([said], False, "") == kind


@pytest.mark.parametrize(("kind", "said"), SAID)
@pytest.mark.parametrize("stepping", [True, None, "no", 0])
def test_the_same_words_stand_once_a_step_was_made_or_where_that_is_not_known(
    kind: str, said: dict[str, Any], stepping: Any
) -> None:
    assert decisions.failure_kind([{**said, "stepping": stepping}], False, "") == ""
    assert decisions.failure_kind([{key: value for key, value in said.items() if key != "stepping"}], False, "") == ""


@pytest.mark.parametrize(("kind", "said"), SAID)
def test_a_measurement_of_any_rank_makes_it_a_result(kind: str, said: dict[str, Any]) -> None:
    assert decisions.failure_kind([said], True, "") == ""


@pytest.mark.parametrize(
    "said",
    [
        error("ValueError", "the planted bug"),
        error("ValueError", LISTEN),
        error("DistNetworkError", "Connection reset by peer"),
        error("RuntimeError", "[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:16042"),
        error("OSError", "[Errno 111] Connection refused"),  # of a download, or whatever else
        error("OSError", "[Errno 28] No space left on device"),
        error("OutOfMemoryError", "CUDA out of memory"),
    ],
)
def test_all_else_stands(said: dict[str, Any]) -> None:
    assert decisions.failure_kind([said], False, LISTEN) == ""
    assert decisions.failure_kind([said, SAID[4][1]], False, "") == "", "what came first is the cause"


def test_peers_of_a_rank_without_its_port_may_complain_before_it() -> None:
    peer = error("DistNetworkError", "failed to recv, got 0 bytes")
    assert decisions.failure_kind([peer, error("DistNetworkError", LISTEN, rank=1)], False, "") == "port"
    assert (
        decisions.failure_kind([error("ValueError", "a bug"), error("DistNetworkError", LISTEN, rank=1)], False, "")
        == ""
    )


def test_a_log_is_looked_at_only_where_no_rank_spoke() -> None:
    log = "------\nThe PMIx server's listener thread failed to start. We cannot\ncontinue.\n------"
    assert decisions.failure_kind([], False, log) == "rendezvous"
    assert decisions.failure_kind([], False, f"Traceback ...\n{LISTEN}\n") == "port"
    horovod = "http_store.cc:96] HTTP GET request failed too many times, aborting.\n  what():  HTTP request failed."
    assert decisions.failure_kind([], False, horovod) == "rendezvous"
    assert decisions.failure_kind([error("ValueError", "a bug")], False, log) == ""
    assert decisions.failure_kind([], True, log) == ""
    for other in ("", "Segmentation fault", "address already in use", "Connection refused"):
        assert decisions.failure_kind([], False, other) == ""


def test_the_pause_grows_and_then_stays() -> None:
    assert [decisions.back_off_seconds(attempt) for attempt in (1, 2, 3, 4, 5, 10)] == [
        1.0,
        4.0,
        16.0,
        60.0,
        60.0,
        60.0,
    ]


def test_every_sentence_says_whose_it_is() -> None:
    for sentence in (*decisions.FROM_RANKS, *decisions.FROM_LAUNCHERS):
        assert sentence.kind in (decisions.PORT, decisions.RENDEZVOUS) and sentence.words and sentence.by


# --- provoked ---


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
    return decisions.failure_kind(said, False, ""), said[0]["message"]


JOIN = 'dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))'


@pytest.mark.slow
def test_a_port_that_is_really_taken(tmp_path: Path, taken: int) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken), "RANK": "0", "WORLD_SIZE": "1"}
    kind, message = kind_of(tmp_path, JOIN, **env)
    assert kind == "port" and f"port: {taken}" in message


@pytest.mark.slow
def test_a_port_that_a_script_finds_taken(tmp_path: Path, taken: int) -> None:
    kind, message = kind_of(tmp_path, f'import socket; socket.socket().bind(("", {taken}))')
    assert kind == "port" and message == f"[Errno {errno.EADDRINUSE}] Address already in use"


@pytest.mark.slow
def test_a_rank_that_finds_nobody(tmp_path: Path) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "1", "WORLD_SIZE": "2"}
    kind, message = kind_of(tmp_path, JOIN, **env)
    assert kind == "rendezvous" and "The client socket has timed out" in message


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_peer_that_is_gone_before_gloo_has_connected(tmp_path: Path) -> None:
    store = tmp_path / "store"
    peer = forked.run([sys.executable, "-c", DIES_IN_THE_MIDDLE, store])
    assert peer.returncode == 3, peer.stderr
    join = f'dist.init_process_group("gloo", store=dist.FileStore({str(store)!r}, 2), rank=0, world_size=2, '
    kind, message = kind_of(tmp_path, join + "timeout=datetime.timedelta(seconds=2))")
    assert kind == "rendezvous" and message.startswith("Gloo connectFullMesh failed with")


@pytest.mark.slow
def test_below_the_shared_clock_nothing_passes(tmp_path: Path) -> None:
    """A module of scaling_study.measure calls what fails, as it does once steps are made."""
    does = (
        "exec(compile('def steps(): raise OSError(98, \"Address already in use\")', 'clock.py', 'exec'),"
        " here := {'__name__': 'scaling_study.measure.clock'})\n"
        "    here['steps']()"
    )
    kind, message = kind_of(tmp_path, does)
    assert message == "[Errno 98] Address already in use" and kind == ""
