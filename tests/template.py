"""The process that has torch loaded, and from which the ranks of tests are forked (forked.py asks it).

    pytest   --- case ----\\
                           template --- loader of deepspeed_zero.py --- keeper --- leader --- ranks 0 and 1, of a case
    launcher --- shadow --/                      \\--- loader of that and noise_by_hand.py --- keeper --- ...

A case is a program that a test runs. A shadow (shadows/sitecustomize.py) is a process that a launcher has started, and
asks for one that runs its program in its place. A loader has imported what a program imports, and stays for the next.
Before the last fork there is no second thread: a child would not have it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import interpreter

CHECKOUT = Path(__file__).resolve().parents[1]
KNOWN_PATH = (*sys.path, str(Path(__file__).parent / "shadows"))
OURS = ("scaling_study", "analysis", "benchmarks")  # packages of a checkout
LOADED = (  # by hand, since scripts import some of it on demand only
    "torch", "torch.distributed", "torchvision", "torchmetrics", "scipy.fft", "scipy.stats",
    "scaling_study.workloads.metrics", "scaling_study.workloads.resnet_cifar10",
    "scaling_study.workloads.images", "scaling_study.worker.script", "scaling_study.parity.compare",
)  # fmt: skip
MOST_BYTES = 1 << 20  # of a message
PR_SET_PDEATHSIG = 1
Asked = dict[str, Any]  # program, ranks (None: one process that nobody launched), env, cwd, cores, unbuffered, whole


def listen(address: str) -> None:
    """Have each program that is asked for forked by its loader, until pytest is gone."""
    for name in LOADED:
        importlib.import_module(name)
    measure_peak_shortly()
    loaders = dict[tuple[str, ...], socket.socket]()

    def loader(needed: tuple[str, ...]) -> socket.socket:
        if needed not in loaders:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                if needed:
                    send(loader(needed[:-1]), {"load": needed[-1]}, [theirs.fileno()])
                elif os.fork() == 0:
                    ours.close()
                    load_and_serve(theirs)
            loaders[needed] = ours
        return loaders[needed]

    loader(())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen(100)
        print("ready", flush=True)
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            connection, _ = server.accept()
            with connection:
                asked, streams = received(connection)
                if asked:
                    with contextlib.suppress(BrokenPipeError):  # of a loader that failed; who asked hears nothing more
                        send(loader(needed_by(asked)), asked, [connection.fileno(), *streams])
                close(streams)
    for each in loaders.values():
        each.close()
    os.wait()
    interpreter.leave(0)


def measure_peak_shortly() -> None:
    """What a device can do at most, which each trial measures at its end, would take longer than most trials here.
    tests/measure/test_surroundings.py and real launches (tests/frameworks/test_launches.py) measure it in full."""
    from scaling_study.measure import surroundings

    surroundings.SIDES, surroundings.COPY_BYTES = (
        {**surroundings.SIDES, "cpu": (128, 512)},
        {**surroundings.COPY_BYTES, "cpu": 8 << 20},
    )
    surroundings.measure_peak.__defaults__ = (0.0,)


def send(to: socket.socket, what: Asked, files: Sequence[int]) -> None:
    socket.send_fds(to, [json.dumps(what).encode()], files)


def received(connection: socket.socket) -> tuple[Asked, list[int]]:
    """What is asked for, and the files that came with it; nothing where there is nobody left to ask."""
    message, files, _, _ = socket.recv_fds(connection, MOST_BYTES, 10)
    return json.loads(message) if message else {}, files


def close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def needed_by(asked: Asked) -> tuple[str, ...]:
    return () if further(asked["env"]) else interpreter.needed(asked["program"], Path(asked["cwd"]), CHECKOUT)


def further(env: Mapping[str, str]) -> list[str]:
    """Folders in which a program finds modules, and this process does not: another checkout, a user's packages."""
    return [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder and folder not in KNOWN_PATH]


# --- a loader ---


def load_and_serve(channel: socket.socket, what: str = "") -> NoReturn:
    """Import what a program imports; from then on fork a keeper for each start of it, or a loader of more."""
    try:
        if what:
            interpreter.load(what)
        interpreter.prepare_to_fork()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    keepers, loaders = set[int](), set[int]()
    while True:
        asked, files = received(channel)
        if not asked:
            break
        child = os.fork()
        if child == 0:
            channel.close()
            if "load" in asked:
                load_and_serve(socket.socket(fileno=files[0]), asked["load"])
            end_with_parent()
            keep(asked, *files)
        (loaders if "load" in asked else keepers).add(child)
        close(files)
        keepers -= {ended for ended in keepers if os.waitpid(ended, os.WNOHANG)[0]}
    for keeper in keepers:
        os.kill(keeper, signal.SIGKILL)
    for child in loaders:  # each has been told by whoever told us
        os.waitpid(child, 0)
    interpreter.leave(0)


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# --- a keeper ---


def keep(asked: Asked, to_asker: int, *streams: int) -> NoReturn:
    """Fork the process that is asked for, pass on the signals that its shadow sends, and tell how it ended."""
    child = os.fork()
    if child == 0:
        os.close(to_asker)
        end_with_parent()
        os.setsid()
        move_in(asked, streams)
        if asked["ranks"] is None:
            interpreter.become(asked["program"])
        lead(asked)
    close(streams)
    asker = socket.socket(fileno=to_asker)
    ended, watched = os.pidfd_open(child), [asker]
    while ended not in select.select([ended, *watched], [], [])[0]:
        signals = asker.recv(100)
        if signals:
            for number in signals:
                os.kill(child, number)
        else:  # the shadow was killed, or the test is over
            (os.killpg if asked["whole"] else os.kill)(child, signal.SIGKILL)
            watched.clear()
    if asked["whole"]:  # nothing of a case lives on
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        asker.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


# --- what is asked for ---


def move_in(asked: Asked, streams: Sequence[int]) -> None:
    """Take the streams, environment, folder, cores and path of modules that the program is to have."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    close(streams)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty(), write_through=asked["unbuffered"])  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    os.sched_setaffinity(0, asked["cores"])
    if folders := further(asked["env"]):
        sys.path[:0] = folders
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:  # what they find depends on these
            del sys.modules[name]


def lead(asked: Asked) -> NoReturn:
    """Be a case's launcher: fork its ranks, hold the store where they meet, end all others when one fails."""
    size, ranks, codes = asked["ranks"], [], []
    ports, port = os.pipe()
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ.update({
                "RANK": f"{rank}", "WORLD_SIZE": f"{size}", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": f"{size}",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.read(ports, 5).decode(),
                "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "True",
            })  # fmt: skip
            interpreter.become(asked["program"])
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


if __name__ == "__main__":
    listen(sys.argv[1])
