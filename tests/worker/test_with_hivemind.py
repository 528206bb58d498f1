"""Where a peer says that it can be reached, and how often it asks others."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from scaling_study.machine import installed

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not installed("hivemind"), reason="hivemind is not installed")]


@pytest.fixture(autouse=True)
def two_of_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)


def test_on_one_host_it_is_where_the_store_is() -> None:
    from scaling_study.worker.with_hivemind import own_address

    assert own_address() == "127.0.0.1"


def test_over_hosts_a_loopback_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Debian, whose hosts have their own name at 127.0.1.1."""
    from scaling_study.worker.with_hivemind import own_address

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match=r"cannot reach this one at 127\.0\.0\.1.*interface"):
        own_address()


def test_an_interface_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from scaling_study.worker.with_hivemind import own_address

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    addresses = [SimpleNamespace(family=socket.AF_INET6, address="fe80::1"),
                 SimpleNamespace(family=socket.AF_INET, address="10.1.2.3")]  # fmt: skip
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"ib0": addresses})
    assert own_address() == "10.1.2.3"


@pytest.mark.parametrize("silent", [0, 3, 4])
def test_peers_that_do_not_answer_at_once_are_asked_again(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from scaling_study.worker import with_hivemind

    asked: list[object] = []

    def node(initial_peers: object) -> str:
        asked.append(initial_peers)
        if len(asked) <= silent:
            raise RuntimeError("DHTNode bootstrap failed: none of the initial_peers responded to a ping.")
        return "a node"

    monkeypatch.setattr(with_hivemind.hivemind, "DHT", node)
    if silent == with_hivemind.TRIES:
        with pytest.raises(RuntimeError, match="responded to a ping"):
            with_hivemind.first_answered(initial_peers=["a"])
    else:
        assert with_hivemind.first_answered(initial_peers=["a"]) == "a node"
    assert asked == [["a"]] * min(silent + 1, with_hivemind.TRIES)


def test_what_fails_for_another_reason_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from scaling_study.worker import with_hivemind

    asked: list[object] = []

    def node(initial_peers: object) -> str:
        asked.append(initial_peers)
        raise RuntimeError("another")

    monkeypatch.setattr(with_hivemind.hivemind, "DHT", node)
    with pytest.raises(RuntimeError, match="another"):
        with_hivemind.first_answered(initial_peers=["a"])
    assert len(asked) == 1
