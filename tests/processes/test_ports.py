"""Ports that are really taken, on each of the addresses on which one can be."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from scaling_study.processes import leftovers

AMONG = range(21_000, 21_040)


class Never:
    """Nobody asks the sweep to end; or somebody does, at once."""

    def __init__(self, asked: bool = False) -> None:
        self._read, self._write = os.pipe()
        if asked:
            os.write(self._write, b"x")

    def fileno(self) -> int:
        return self._read


@pytest.fixture(params=[("0.0.0.0", socket.AF_INET), ("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def taken(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    address, family = request.param
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, next(port for port in AMONG if leftovers.is_free(port))))
        server.listen()
        yield server


def test_a_port_that_anybody_listens_on_is_not_free(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    assert not leftovers.is_free(port)
    taken.close()
    assert leftovers.is_free(port)


def test_a_port_that_stays_taken_is_left_to_its_holder_who_is_named(
    taken: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "WAIT_SECONDS", 0.5)
    held = taken.getsockname()[1]
    port, why = leftovers.choose_port(held, AMONG, Never())
    assert port != held and port in AMONG and leftovers.is_free(port)
    assert why.startswith(f"port {held} is in use by process {os.getpid()} (")
    assert why.endswith(f"; {port} was used instead")


@pytest.mark.slow
def test_a_port_that_is_given_back_meanwhile_is_taken(taken: socket.socket) -> None:
    held = taken.getsockname()[1]
    threading.Timer(0.6, taken.close).start()
    assert leftovers.choose_port(held, AMONG, Never()) == (held, "")


def test_who_asks_the_sweep_to_end_does_not_wait_for_a_port(
    taken: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "WAIT_SECONDS", 600.0)
    start = time.monotonic()
    leftovers.choose_port(taken.getsockname()[1], AMONG, Never(asked=True))
    assert time.monotonic() - start < 60
