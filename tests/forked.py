"""Ranks forked from a process that has torch loaded: a case costs what it trains, and not what it imports.

    done = forked.run(["torchrun", ..., "script.py", "--flags"])      as subprocess.run, with its output as text

Most of a launch's CPU time goes into importing torch. Where a test asks what a script counts, keeps or trains, and not
how it is started, its ranks are forked from a process that has imported torch and what the script does (template.py).
They are told who they are in torchrun's way. Real launchers start every framework in frameworks/test_launches.py.

    done = forked.launch(["mpirun", ..., "python", "script.py", "--flags"])
    with forked.starts(): ...      (fixture `forked_starts`)

Here launchers and sweeps are the real ones; each process that they start is the shadow of a fork, and ends as that does
(shadows/sitecustomize.py). Not for tests of the processes themselves: pid, parent and session are not the fork's. One
template process serves all tests of a pytest worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO
from unittest import mock

HERE = Path(__file__).resolve().parent
BIN, CHECKOUT = Path(sys.executable).parent, HERE.parent
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
ADDRESS, PREFIX = "TESTS_SHADOWS_OF", "TESTS_SHADOWS_PREFIX"  # what a shadow is told: the template's socket and Python
LONGEST_SECONDS = 600  # a guard: a case takes a few


class Template:
    """A process with torch loaded, started when first needed."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def started(self) -> str:
        """The address at which it is asked for forks."""
        if self.process is None:
            self.folder = tempfile.TemporaryDirectory()
            self.address = f"{self.folder.name}/socket"
            path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
            self.process = subprocess.Popen(
                [sys.executable, HERE / "template.py", self.address],
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            assert self.process.stdout and self.process.stdout.readline() == b"ready\n"
        return self.address

    def end(self) -> None:
        if self.process:
            self.process.communicate()  # closes its stdin, which tells it to end
            self.folder.cleanup()


template = Template()


def run(
    argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path = CHECKOUT
) -> subprocess.CompletedProcess[str]:
    """Run `python SCRIPT | -m MODULE | -c TEXT ...`, or what torchrun is to start; `env`: beside our own."""
    ranks, program = started_by([str(word) for word in argv])
    asked = {
        "program": program, "ranks": ranks, "env": {**os.environ, **(env or {})}, "cwd": str(cwd),
        "cores": list(os.sched_getaffinity(0)), "unbuffered": False, "whole": True,
    }  # fmt: skip
    with (
        open(os.devnull) as nothing, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
    ):  # fmt: skip
        connection.connect(template.started())
        socket.send_fds(connection, [json.dumps(asked).encode()], [nothing.fileno(), out.fileno(), err.fileno()])
        ended = bool(select.select([connection], [], [], LONGEST_SECONDS)[0])
        answer = connection.recv(100) if ended else b""
        stdout, stderr = whole(out), whole(err)
    if not ended:
        raise subprocess.TimeoutExpired(list(map(str, argv)), LONGEST_SECONDS, stdout, stderr)
    assert answer, f"the process that forks cases is gone: {stderr}"
    return subprocess.CompletedProcess(argv, json.loads(answer), stdout, stderr)


@contextlib.contextmanager
def starts(path: Sequence[Path] = ()) -> Iterator[None]:
    """While this is open, what launchers of this process start are shadows. `path`: where it finds modules too."""
    told = {ADDRESS: template.started(), PREFIX: sys.prefix}
    folders = [*map(str, (HERE / "shadows", *path, CHECKOUT)), *filter(None, [os.environ.get("PYTHONPATH")])]
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(folders), **told}):
        yield


def alone(argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The same by an interpreter of its own, for what depends on what is imported, or on the environment meanwhile."""
    return subprocess.run(
        argv, cwd=CHECKOUT, env={**os.environ, **(env or {})}, capture_output=True, text=True,
        timeout=LONGEST_SECONDS, check=False,
    )  # fmt: skip


def launch(
    argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path = CHECKOUT, path: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a launcher for real, as subprocess.run, with its output as text; what it starts is forked."""
    with starts(path):
        everything = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **(env or {})}
        return subprocess.run(
            argv, cwd=cwd, env=everything, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=LONGEST_SECONDS, check=False,
        )  # fmt: skip


def ended(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """A run that must have ended well."""
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def whole(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


def started_by(argv: list[str]) -> tuple[int | None, list[str]]:
    """How many ranks a command starts (None: one process that nobody launched), and what each is to run."""
    if Path(argv[0]).name != "torchrun":
        return None, argv[1:]
    at = argv.index("--nproc-per-node") + 2
    return int(argv[at - 1]), argv[at:]
