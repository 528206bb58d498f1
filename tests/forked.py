"""Ranks forked from a process that has torch loaded: a case costs what it trains, and not what it imports.

    done = forked.run(["torchrun", ..., "script.py", "--flags"])      as subprocess.run, with its output as text

Most of a launch's CPU time goes into importing torch, once in the launcher and once in each rank. Where a test asks
what a script counts, keeps or trains, and not how it is started, its ranks are forked from a process that has imported
torch and, from the first case of a test file on, what that file's scripts import. They are told who they are in
torchrun's way: the same variables, and a store that somebody else holds. Real launchers start every framework in
frameworks/test_launches.py.

One template process serves all tests of a pytest worker. Each test file talks to a fork of it, so that no file sees
what another one's scripts have imported. Before the last fork there is no second thread: a child would not have it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

CHECKOUT = Path(__file__).resolve().parents[1]
LOADED = ("torch", "torch.distributed", "torchvision", "scipy.fft", "scipy.stats", "scaling_study.workloads",
          "scaling_study.measure", "scaling_study.parity.check")  # fmt: skip
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
LONGEST_SECONDS = 600  # a guard: a case takes a few


# --- in pytest ---


class Template:
    """A process with torch loaded, started when first needed, and the fork of it that runs the current test file."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: socket.socket | None = None

    def connected(self) -> socket.socket:
        if self.process is None:
            self.folder = tempfile.TemporaryDirectory()
            self.address = f"{self.folder.name}/socket"
            path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
            self.process = subprocess.Popen(
                [sys.executable, __file__, self.address], env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            assert self.process.stdout and self.process.stdout.readline() == b"ready\n"
        if self.connection is None:
            self.connection = socket.socket(socket.AF_UNIX)
            self.connection.connect(self.address)
        return self.connection

    def leave_file(self) -> None:
        """A test file is done: the next one has a fork of its own."""
        if self.connection:
            self.connection.close()
            self.connection = None

    def end(self) -> None:
        self.leave_file()
        if self.process:
            self.process.communicate()  # closes its stdin, which tells it to end
            self.folder.cleanup()


template = Template()


def run(
    argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path = CHECKOUT
) -> subprocess.CompletedProcess[str]:
    """Run `python SCRIPT | -m MODULE | -c TEXT ...`, or what torchrun is to start; `env`: beside our own."""
    ranks, program = started_by([str(word) for word in argv])
    connection = template.connected()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        case = {
            "program": program, "ranks": ranks, "env": {**os.environ, **(env or {})}, "cwd": str(cwd),
            "out": f"/proc/{os.getpid()}/fd/{out.fileno()}", "err": f"/proc/{os.getpid()}/fd/{err.fileno()}",
        }  # fmt: skip
        connection.sendall(f"{json.dumps(case)}\n".encode())
        answer = connection.recv(100)
        stdout, stderr = whole(out), whole(err)
    assert answer, f"the process that forks cases is gone: {stderr}"
    if (code := json.loads(answer)) is None:
        raise subprocess.TimeoutExpired(list(argv), LONGEST_SECONDS, stdout, stderr)
    return subprocess.CompletedProcess(argv, code, stdout, stderr)


def whole(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


def started_by(argv: list[str]) -> tuple[int | None, list[str]]:
    """How many ranks a command starts (None: one process that nobody launched), and what each is to run."""
    if Path(argv[0]).name != "torchrun":
        return None, argv[1:]
    at = argv.index("--nproc-per-node") + 2
    return int(argv[at - 1]), argv[at:]


# --- in the process that forks ---


def listen(address: str) -> None:
    """Fork once for every test file that connects, until pytest is gone."""
    for name in LOADED:
        importlib.import_module(name)
    prepare_to_fork()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                serve(connection)
                leave(0)
            connection.close()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def serve(connection: socket.socket) -> None:
    """Run one test file's cases, one after the other, until it has no more."""
    known: set[str] = set()
    with connection, connection.makefile("r", encoding="utf-8") as cases:
        for line in cases:
            case = json.loads(line)
            script = case["program"][0]
            if script not in known and can_be_loaded(script):
                sys.path.insert(0, str(Path(script).parent))
                runpy.run_path(script, run_name="loaded")  # its imports, for all cases to come
                del sys.path[0]
                prepare_to_fork()
            known.add(script)
            leader = os.fork()
            if leader == 0:
                os.setsid()
                connection.close()
                lead(case)
            connection.sendall(f"{json.dumps(ended(leader, connection))}\n".encode())


def prepare_to_fork() -> None:
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads, of which a fork would have one"
    gc.freeze()  # no collection touches, and so copies, what all share


def can_be_loaded(script: str) -> bool:
    """Whether it is a script that does nothing until it is called __main__."""
    return script.endswith(".py") and '\nif __name__ == "__main__":\n' in Path(script).read_text(encoding="utf-8")


def ended(leader: int, connection: socket.socket) -> int | None:
    """The exit code of a case's first process, None if it had to be killed. Nothing of the case lives on."""
    watch = os.pidfd_open(leader)
    ready, *_ = select.select([watch, connection], [], [], LONGEST_SECONDS)  # readable: it ended; or pytest is gone
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    os.close(watch)
    _, status = os.waitpid(leader, 0)
    return os.waitstatus_to_exitcode(status) if watch in ready else None


def lead(case: dict[str, Any]) -> NoReturn:
    """Be a case's launcher: fork its ranks, hold the store where they meet, end all others when one fails."""
    if case["ranks"] is None:
        become(case, {})
    size, ranks, codes = case["ranks"], [], []
    ports, port = os.pipe()
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            become(case, {
                "RANK": f"{rank}", "WORLD_SIZE": f"{size}", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": f"{size}",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.read(ports, 5).decode(),
                "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "True",
            })  # fmt: skip
        ranks.append(pid)
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # whichever port is free
    os.write(port, f"{store.port:05}".encode() * size)
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        codes.append(os.waitstatus_to_exitcode(status))
        if codes[-1]:
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    os._exit(int(any(codes)))


def become(case: dict[str, Any], told: Mapping[str, str]) -> NoReturn:
    """Be the interpreter that runs a case's program."""
    for stream, path in ((0, os.devnull), (1, case["out"]), (2, case["err"])):
        file = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update({**case["env"], **told})
    os.chdir(case["cwd"])
    code = 0
    try:
        execute(*case["program"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        code = 1
        traceback.print_exc()
    leave(code)


def execute(what: str, *arguments: str) -> None:
    """What `python WHAT ARGUMENTS` executes."""
    if what == "-m":
        sys.argv = list(arguments)
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.path.insert(0, "")
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [what, *arguments]
        sys.path.insert(0, str(Path(what).parent))
        runpy.run_path(what, run_name="__main__")


def leave(code: int) -> NoReturn:
    """End as an interpreter does, short of taking apart what other processes still use."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    listen(sys.argv[1])
    leave(0)
