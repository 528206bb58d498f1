"""One line to the agent of one host: opened by ssh, asked and answered as JSON, and what is said when it is cut."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any

import psutil

from scaling_study.hosts import agent, reach, ssh
from scaling_study.settings import CHECKOUT

OPEN_SECONDS = 20.0  # for the first answer: logging in, starting Python
ANSWER_SECONDS = 5.0


class Lost(Exception):
    """A host cannot be reached, or no more. The message names it, and says what helps."""


class Line:
    """One host's agent."""

    def __init__(self, host: str, elsewhere: bool = True) -> None:
        self.host, self._heard = host, b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it is open as long as the line)
        words = [*_environment(), sys.executable, "-P", "-u", "-c", agent.ENTRY.format(checkout=str(CHECKOUT))]
        argv = reach.command(host, words) if elsewhere else words
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            raise Lost(f"{host}: {error.filename}: {error.strerror}: is there an ssh client?") from error

    def fileno(self) -> int:
        """Readable once an answer comes, or the line is cut."""
        assert self._process.stdout
        return self._process.stdout.fileno()

    def ask(self, request: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """The agent's answer. Raises Lost where there is none in time."""
        deadline = time.monotonic() + seconds
        self._say(json.dumps(request).encode() + b"\n")
        while b"\n" not in self._heard:
            ready = select.select([self.fileno()], [], [], max(0.0, deadline - time.monotonic()))[0]
            data = os.read(self.fileno(), 1 << 20) if ready else b""
            if not data:
                raise Lost(self.why("the line was cut" if ready else f"no answer within {seconds:.0f} s"))
            self._heard += data
        line, self._heard = self._heard.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def beat(self) -> None:
        """Say that somebody is there."""
        assert self._process.stdin
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(b"\n")

    def close(self) -> None:
        """Cut the line: the agent ends what runs, and itself."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def why(self, otherwise: str) -> str:
        """How the line ended, in one clause that names the host."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace")
        if code is None or (not said and code in (0, ssh.OWN_CODE)):
            return f"{self.host}: {otherwise}"
        return f"{self.host}: {reach.why(self.host, code, said)}"

    def _say(self, data: bytes) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(data)
        except (OSError, ValueError) as error:
            raise Lost(self.why("the line was cut")) from error


def others(names: Iterable[str]) -> list[str]:
    """Those of the names that are not this host's."""
    here = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    return [name for name in names if _address(name) not in here]


def _address(name: str) -> str:
    with contextlib.suppress(OSError):
        return socket.gethostbyname(name)
    return ""


def _environment() -> list[str]:
    """Where another host finds what ranks import, if that is not where its Python looks anyway."""
    path = os.environ.get("PYTHONPATH")
    return ["env", f"PYTHONPATH={path}"] if path else []
