"""Is a port free on this host, and if not, which process uses it? Checked before each launch that is told its port."""

from __future__ import annotations

import contextlib
import errno
import select
import socket

import psutil

from scaling_study.processes.process import Stop

WAIT_SECONDS, POLL_SECONDS = 3.0, 0.25  # for one that the trial before still holds
ANYWHERE = ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"))  # where torch's store listens, in this order


def choose_port(preferred: int, among: range, stop: Stop) -> tuple[int, str]:
    """(a free port, a note if it is not the preferred one). A port in use is waited for first.

    Then it is the next free one `among` the others; the preferred one after all where none is free.
    """
    for _ in range(round(WAIT_SECONDS / POLL_SECONDS)):
        if is_free(preferred):
            return preferred, ""
        if select.select([stop.fileno()], [], [], POLL_SECONDS)[0]:
            break
    place = among.index(preferred)
    port = next((port for port in (*among[place + 1 :], *among[:place]) if is_free(port)), preferred)
    return port, f"port {preferred} is in use by {holder(preferred)}; {port} was used instead"


def is_free(port: int) -> bool:
    """Whether a server could listen there, on every address of this host."""
    return all(_can_listen(family, address, port) for family, address in ANYWHERE)


def holder(port: int) -> str:
    """`process 123 (python)`, as far as this user may know."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "a process of another user"


def _can_listen(family: socket.AddressFamily, address: str, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as all servers do: TIME_WAIT does not count
            server.bind((address, port))
            server.listen()
            return True
    except OSError as error:
        return error.errno != errno.EADDRINUSE  # a host without IPv6 has nothing there to hold
