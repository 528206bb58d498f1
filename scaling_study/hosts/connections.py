"""Connections of a sweep to the agents of other hosts: opened by ssh or srun, kept alive by a heartbeat, watched.

    with connections.trial(hosts, mark, temporary, stop) as trial:   begins the trial on every host, ends it there
        exit = process.run(..., stop=trial)                          readable when a host fails, or the driver stops it
    exit = trial.with_failed_host(exit)                              names the host that failed, if one did

Requests and answers are JSON, one a line (agent.py).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psutil

from scaling_study.hosts import agent
from scaling_study.hosts import hosts as reach
from scaling_study.processes.process import Exit, Stop
from scaling_study.settings import CHECKOUT

OPEN_SECONDS = 20.0  # for the first answer: logging in, starting Python
ANSWER_SECONDS = 5.0
HEARTBEAT_SECONDS = 1.0
CLOSED = "the connection was closed"


class ConnectionLost(Exception):
    """A host cannot be reached, or no more, or is this one. The message names it, and the remedy."""


class AgentConnection:
    """The connection to one host's agent, which is started with it and ends with it."""

    def __init__(self, host: str, elsewhere: bool = True) -> None:
        self.host, self._received = host, b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it is open as long as the connection)
        words = [sys.executable, "-P", "-u", "-c", agent.ENTRY.format(checkout=str(CHECKOUT))]
        if path := os.environ.get("PYTHONPATH"):
            words = ["env", f"PYTHONPATH={path}", *words]
        argv = reach.command(host, words) if elsewhere else words
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=self._errors, start_new_session=True, bufsize=0
            )
        except OSError as error:
            why = f"{error.filename}: {error.strerror}: is an ssh client installed here?"
            raise ConnectionLost(f"{host}: {why}") from error

    def fileno(self) -> int:
        """Readable once an answer arrives, or the connection is closed."""
        assert self._process.stdout
        return self._process.stdout.fileno()

    def ask(self, request: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """The agent's answer. Raises ConnectionLost where there is none in time."""
        deadline = time.monotonic() + seconds
        try:
            self._send(json.dumps(request).encode() + b"\n")
        except (OSError, ValueError) as error:
            raise ConnectionLost(self.failure(CLOSED)) from error
        while b"\n" not in self._received:
            ready = select.select([self.fileno()], [], [], max(0.0, deadline - time.monotonic()))[0]
            data = os.read(self.fileno(), 1 << 20) if ready else b""
            if not data:
                raise ConnectionLost(self.failure(CLOSED if ready else f"no answer within {seconds:.0f} s"))
            self._received += data
        answer_text, self._received = self._received.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(answer_text)
        return answer

    def begin(self, mark: str, temporary: str) -> None:
        """Begin a trial there. Raises ConnectionLost, also where "there" is this host after all."""
        request = {"ask": "begin", "mark": mark, "temporary": temporary, "asker": agent.this_process()}
        if self.ask(request)["is_this"]:
            raise ConnectionLost(same_host(self.host))

    def heartbeat(self) -> None:
        """Tell the agent that this process is alive."""
        with contextlib.suppress(OSError, ValueError):
            self._send(b"\n")

    def close(self) -> None:
        """Close the connection: the agent ends what runs, and itself."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def failure(self, otherwise: str) -> str:
        """The end of the connection, in one clause that names the host."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
        self._errors.seek(0)
        stderr = self._errors.read().decode("utf-8", "replace")
        if code is None or (not stderr and code in (0, reach.OWN_CODE)):
            return f"{self.host}: {otherwise}"
        return f"{self.host}: {reach.failure(self.host, code, stderr)}"

    def _send(self, data: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(data)


class AgentConnections(contextlib.AbstractContextManager["AgentConnections"]):
    """The connections of one sweep, each opened when a trial first needs it and kept for the next."""

    def __init__(self) -> None:
        self._connections: dict[str, AgentConnection] = {}
        self._closing = threading.Event()
        self._heartbeat: threading.Thread | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing.set()
        if self._heartbeat:
            self._heartbeat.join()
        for connection in self._connections.values():
            connection.close()

    @contextlib.contextmanager
    def trial(self, hosts: Sequence[str], mark: str, temporary: str, stop: Stop) -> Iterator[TrialOnHosts]:
        """A trial on these hosts. Raises ConnectionLost if one of them cannot be reached at its beginning."""

        def end_again(connection: AgentConnection) -> None:
            connection.begin(mark, temporary)
            connection.ask({"ask": "end"})

        if lost := self._ask_all(hosts, lambda connection: connection.begin(mark, temporary)):
            raise lost
        trial = TrialOnHosts([self._connections[host] for host in hosts], stop)
        try:
            yield trial
        finally:
            trial.close()
            if lost := self._ask_all(hosts, lambda connection: connection.ask({"ask": "end"}), reopen=False):
                trial.failed_host = trial.failed_host or str(lost)
                # Its ranks may be alive: a new agent ends them.
                self._ask_all(hosts, end_again)

    def ask(self, hosts: Sequence[str], request: Mapping[str, Any]) -> None:
        """Have the agents of these hosts answer a request. Raises ConnectionLost where one does not."""
        if lost := self._ask_all(hosts, lambda connection: connection.ask(request), reopen=False):
            raise lost

    def _ask_all(
        self, hosts: Sequence[str], ask: Callable[[AgentConnection], object], reopen: bool = True
    ) -> ConnectionLost | None:
        """Ask every host, all at once; the failure of the first that cannot be reached, also by a new connection."""

        def failure_of(host: str) -> ConnectionLost | None:
            known = host in self._connections
            try:
                ask(self._open(host))
            except ConnectionLost as lost:
                if connection := self._connections.pop(host, None):
                    connection.close()
                return failure_of(host) if known and reopen else lost
            return None

        if not hosts:
            return None
        with ThreadPoolExecutor(len(hosts)) as pool:
            return next(filter(None, list(pool.map(failure_of, hosts))), None)

    def _open(self, host: str) -> AgentConnection:
        """The host's connection, opened if there is none."""
        if host not in self._connections:
            connection = AgentConnection(host)
            try:
                connection.ask({"ask": "clock"}, OPEN_SECONDS)
            except ConnectionLost:
                connection.close()
                raise
            self._connections[host] = connection
            if not self._heartbeat:
                self._heartbeat = threading.Thread(target=self._send_heartbeats, daemon=True)
                self._heartbeat.start()
        return self._connections[host]

    def _send_heartbeats(self) -> None:
        while not self._closing.wait(HEARTBEAT_SECONDS):
            for connection in list(self._connections.values()):
                connection.heartbeat()


class TrialOnHosts:
    """Ends a running trial before its time: readable when the driver stops it or a host fails."""

    def __init__(self, connections: Sequence[AgentConnection], stop: Stop) -> None:
        self._connections, self.failed_host = connections, ""
        self._epoll = select.epoll()
        for source in (stop, *connections):
            self._epoll.register(source.fileno(), select.EPOLLIN | select.EPOLLHUP)

    def fileno(self) -> int:
        """Readable once either has happened."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Note which host's connection was closed: agents send nothing by themselves while a trial runs."""
        self._epoll.close()
        closed = [connection for connection in self._connections if select.select([connection], [], [], 0)[0]]
        self.failed_host = closed[0].failure(CLOSED) if closed else ""

    def with_failed_host(self, exit: Exit) -> Exit:
        """The end of the command, with the host that failed, if one did."""
        return replace(exit, node=self.failed_host, interrupted=False) if self.failed_host else exit


def other_hosts(names: Iterable[str]) -> list[str]:
    """Those of the names that are not this host's.

    This host's are its hostname and its full one, whatever they resolve to (on Debian 127.0.1.1, in a cloud perhaps an
    address that a router has), and those that resolve to an address of it. Not the first part of a longer hostname: in
    another domain that is another host.
    """
    own = _own_addresses()
    return [name for name in names if not (_is_own_name(name) or any(_is_own(each, own) for each in _resolved(name)))]


def names_no_interface(name: str) -> bool:
    """True where a launcher that goes by the addresses of interfaces would take the name for another host's."""
    return agent.address_of(name) not in _own_addresses()


def same_host(name: str) -> str:
    """What is wrong where a host that was taken for another is this one, and what would be right."""
    return (
        f"{name}: is this host under another name: list it as {socket.gethostname()}, its hostname, or by the address "
        "of one of its interfaces"
    )


def _is_own_name(name: str) -> bool:
    name, own = name.lower(), socket.gethostname().lower()
    if name == own:
        return True
    # The full name may take a resolver seconds: it is asked for only where it can be the one that is meant.
    return name.partition(".")[0] == own.partition(".")[0] and "." in name and name == socket.getfqdn().lower()


def _own_addresses() -> set[str]:
    return {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}


def _is_own(address: str, own: set[str]) -> bool:
    """True for an address of this host: of its interfaces, or one by which every host calls itself."""
    at = ipaddress.ip_address(address)
    return at.is_loopback or at.is_unspecified or address in own


def _resolved(name: str) -> set[str]:
    """The addresses that a name resolves to on this host, in either family; none where it does not."""
    with contextlib.suppress(OSError, UnicodeError):
        return {str(at[0]) for *_, at in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    return set()


def address_for(host: str) -> str:
    """This host's address for what comes from that one, by the way that leads there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
