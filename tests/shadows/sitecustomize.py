"""First thing in an interpreter that finds this folder on its path (tests/forked.py): be the shadow of a fork.

A shadow is the process that a launcher has started. It hands its command line, environment, folder, cores and streams
to a process that has torch loaded, passes signals on to the fork that runs the program, and ends as that has ended. An
interpreter that runs anything else than a program with torch goes on as if this file were not there.
"""

import json
import os
import sys

ADDRESS = "TESTS_SHADOWS_OF"  # the socket of the process that forks
PREFIX = "TESTS_SHADOWS_PREFIX"  # whose interpreter that is
MODULES = (
    "scaling_study.parity.compare", "scaling_study.workloads.", "benchmarks.", "torch.distributed.run",
    "deepspeed.launcher.launch",
)  # fmt: skip
NEEDS_TORCH = (b"torch", b"horovod", b"deepspeed", b"scaling_study.worker")  # what a program's text names
PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")


def program_of(words: list[str]) -> list[str]:
    """What is to run, as [SCRIPT or -m, ...]; empty if that has no use of torch."""
    if words[:1] == ["-m"]:
        return words if words[1:] and words[1].startswith(MODULES) else []
    if not words or words[0].startswith("-"):
        return []
    try:
        with open(words[0], "rb") as script:
            text = script.read(100_000)
    except OSError:
        return []
    return words if any(name in text for name in NEEDS_TORCH) else []


def be_a_shadow(connection, program: list[str], unbuffered: bool) -> None:
    import array
    import signal
    import socket

    asked = {
        "program": program, "ranks": None, "env": dict(os.environ), "cwd": os.getcwd(),
        "cores": list(os.sched_getaffinity(0)), "unbuffered": unbuffered, "whole": False,
    }  # fmt: skip
    streams = array.array("i", [0, 1, 2])
    connection.sendmsg([json.dumps(asked).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    for name in PASSED_ON:
        number = getattr(signal, name)
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: connection.send(bytes([number])))
    answer = connection.recv(100)
    code = json.loads(answer) if answer else 70
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def begin() -> None:
    words = sys.orig_argv[1:]
    unbuffered = words[:1] == ["-u"]
    program = program_of(words[unbuffered:])
    if not program or ADDRESS not in os.environ or sys.prefix != os.environ.get(PREFIX):
        return
    import _socket

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        connection.connect(os.environ[ADDRESS])
    except OSError:  # the tests are over: whoever is started now is a process like any other
        return
    be_a_shadow(connection, program, unbuffered)


begin()
