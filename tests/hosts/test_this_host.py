"""This host, under whatever name it is listed, is no other one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from scaling_study.hosts.connections import other_hosts

KNOWN = {  # what this host's resolver says: name -> addresses
    "localhost": ["::1", "127.0.0.1"],
    "ip6-localhost": ["::1"],
    "h1": ["127.0.1.1"],  # as Debian's /etc/hosts has it
    "h1.cluster.org": ["192.0.2.7"],
    "data-h1": ["10.0.0.1"],
    "data-h1-v6": ["2001:db8::1"],
    "public.cloud": ["203.0.113.9"],
    "h2": ["10.0.0.2"],
    "h2-v6": ["2001:db8::2"],
    "h10": ["10.0.0.10"],
    "h1.elsewhere.org": ["198.51.100.1"],
}


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """This host has 10.0.0.1, 2001:db8::1 and fe80::1, and knows KNOWN; called with the name that it has."""

    def addresses(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        try:
            found = [name] if name[0].isdecimal() else KNOWN[name.lower()]
        except KeyError:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
        return [(0, 0, 0, "", (address, 0)) for address in found]

    def first(name: str) -> str:
        return next(str(at[0]) for *_, at in addresses(name) if "." in str(at[0]))  # type: ignore[index]

    cards = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1", "2001:db8::1", "fe80::1%eth0", "02:00:00:00:00:01"]}
    listed = {card: [SimpleNamespace(address=each) for each in of] for card, of in cards.items()}
    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    monkeypatch.setattr(socket, "gethostbyname", first)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: listed)

    def called(name: str, in_full: str) -> None:
        monkeypatch.setattr(socket, "gethostname", lambda: name)
        monkeypatch.setattr(socket, "getfqdn", lambda *_: in_full)

    called("h1", "h1.cluster.org")
    return called


@pytest.mark.parametrize(
    "name",
    [
        "localhost", "ip6-localhost", "127.0.0.1", "127.0.0.2", "127.0.1.1", "0.0.0.0", "10.0.0.1", "h1", "H1",
        "h1.cluster.org", "H1.Cluster.org", "data-h1", "data-h1-v6",
    ],
)  # fmt: skip
def test_a_name_of_this_host_is_no_other_host(resolver: object, name: str) -> None:
    assert other_hosts([name]) == []


def test_its_own_name_is_this_host_whatever_it_resolves_to(resolver: Callable[[str, str], None]) -> None:
    """As of a machine in a cloud, whose public address is on none of its interfaces."""
    resolver("public.cloud", "public.cloud")
    assert other_hosts(["public.cloud", "h2"]) == ["h2"]
    resolver("unknown", "localhost")  # nothing resolves it
    assert other_hosts(["Unknown", "h2"]) == ["h2"]


def test_every_other_name_is_another_host_also_one_that_begins_alike(resolver: object) -> None:
    others = ["h2", "h2-v6", "10.0.0.2", "h10", "h1.elsewhere.org", "no.such.host.example"]
    assert other_hosts(["h1", *others, "localhost"]) == others


def test_an_address_asks_for_no_full_name(resolver: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take a resolver seconds."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("asked"))
    assert other_hosts(["10.0.0.2", "h2", "h10.cluster.org"]) == ["10.0.0.2", "h2", "h10.cluster.org"]
