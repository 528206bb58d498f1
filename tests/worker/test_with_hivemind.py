"""Where a peer says that it can be reached, and how often it asks others."""

from __future__ import annotations

import contextlib
import importlib
import socket
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from scaling_study.machine import installed

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not installed("hivemind"), reason="hivemind is not installed")]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, of two peers on one host."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    return importlib.import_module("scaling_study.worker.with_hivemind")


def test_over_hosts_a_loopback_reaches_nobody(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Debian, whose hosts have their own name at 127.0.1.1."""
    assert peers.own_address() == "127.0.0.1", "on one host it is where the store is"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match=r"cannot reach this one at 127\.0\.0\.1.*interface"):
        peers.own_address()


def test_an_interface_that_is_named_is_taken(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    families = {socket.AF_INET6: "fe80::1", socket.AF_INET: "10.1.2.3"}
    addresses = [SimpleNamespace(family=family, address=address) for family, address in families.items()]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"ib0": addresses})
    assert peers.own_address() == "10.1.2.3"


SILENT = "DHTNode bootstrap failed: none of the initial_peers responded to a ping."


@pytest.mark.parametrize(
    ("silent", "why", "tries"), [(0, SILENT, 1), (3, SILENT, 4), (4, SILENT, 4), (4, "another", 1)]
)
def test_peers_that_do_not_answer_at_once_are_asked_again(
    silent: int, why: str, tries: int, peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def node(initial_peers: object) -> str:
        asked.append(initial_peers)
        if len(asked) <= silent:
            raise RuntimeError(why)
        return "a node"

    monkeypatch.setattr(peers.hivemind, "DHT", node)
    with pytest.raises(RuntimeError, match=why) if silent == peers.TRIES else contextlib.nullcontext():
        assert peers.first_answered(initial_peers=["a"]) == "a node"
    assert asked == [["a"]] * tries
