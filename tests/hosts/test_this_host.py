"""This host, under whatever name it is listed: it is no other one, and no agent ends the sweep that asks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from scaling_study.hosts import agent
from scaling_study.hosts.connections import AgentConnection, ConnectionLost, other_hosts
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.processes import leftovers, process

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


# --- the second line of defence, with real processes


def test_a_process_is_seen_on_its_own_host_alone() -> None:
    own = agent.this_process()
    assert own["pid"] == os.getpid() and agent.sees(own)
    assert not agent.sees({**own, "boot_id": "of another machine"})
    assert not agent.sees({**own, "started": own["started"] - 1}), "another process of that number"
    with subprocess.Popen(["sleep", "0"]) as ended:
        pass
    assert not agent.sees({**own, "pid": ended.pid})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a namespace")
def test_a_process_of_a_container_is_seen_by_its_number_there() -> None:
    say = "import json; from scaling_study.hosts import agent; print(json.dumps(agent.this_process()), flush=True)"
    private = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", f"{say}; input()"]
    with subprocess.Popen(private, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as container:
        assert container.stdin and container.stdout
        said = container.stdout.readline()
        if not said:
            pytest.skip("no namespaces here")
        inside = json.loads(said)
        assert inside["pid"] == 1 and agent.sees(inside)
        container.stdin.close()
    assert not agent.sees(inside)


@pytest.mark.slow
def test_an_agent_ends_nothing_on_the_host_of_the_sweep_that_asks(tmp_path: Path) -> None:
    rank = subprocess.Popen(["sleep", "600"], env={leftovers.MARK: str(tmp_path)})
    connection = AgentConnection("alias", elsewhere=False)
    try:
        with pytest.raises(ConnectionLost, match="alias: is this host under another name"):
            connection.begin(str(tmp_path), str(tmp_path / "scaling-study-abc-1"))
        assert connection.ask({"ask": "end"}) == {"ended": []}
        connection.close()
        assert rank.poll() is None and not list(tmp_path.iterdir())
    finally:
        rank.kill()
        rank.wait()


@pytest.mark.slow
def test_a_supervisor_outlives_a_trial_on_its_own_host_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an ssh that stands for one to this host: a name of ~/.ssh/config, or of an address behind a router."""
    (ssh := tmp_path / "bin" / "ssh").parent.mkdir()
    # What it starts has another parent than the supervisor, as what an sshd starts.
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec 3<&0\nsh -c "$last" <&3 &\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    (folder := tmp_path / "results").mkdir()
    with process.Interruption() as interruption, SupervisorClient(folder, interruption) as client:
        refused = client.run(["touch", str(tmp_path / "started")], {}, folder / "log.txt", 60.0, ["alias"])
        assert not refused.lost, refused.lost
        assert refused.node == (
            f"alias: is this host under another name: list it as {socket.gethostname()}, its hostname, or by the "
            "address of one of its interfaces"
        )
        assert not (tmp_path / "started").exists()
        assert client.run(["true"], {}, folder / "log.txt", 60.0).code == 0
