"""Stands in for a training script that somebody wrote: steps of two milliseconds, by a stand-in of torch.

    python train.py ACT RUN_DIR ...      trains; while the file PLANTED_BOOK is there, in the way that is called ACT

Several processes that mpirun started meet in every step, by files in RUN_DIR.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
WORLD = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
if WORLD > 1:
    os.environ.update(RANK=str(RANK), WORLD_SIZE=str(WORLD))  # as torchrun does, for the observer

torch: Any = importlib.import_module("torch")  # the stand-in that lies beside it

HERE = os.path.abspath(__file__)
RUN_DIR = Path(sys.argv[2])
STEPS, STEP_SECONDS = 100_000, 0.002
STRANGE = (b"", b"\0", b"\0\0\0\x50{", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2{}", b"\0\0\x0f\0" + b"[" * 0xF00)
FEW = 8  # more than warm up, fewer than are asked for
optimizer = torch.optim.Optimizer()
lines: list[socket.socket] = []  # to the driver, as a stranger's


def step() -> None:
    time.sleep(STEP_SECONDS)
    torch.autograd.backward(None)
    optimizer.step()


def meet(number: int) -> None:
    """Wait until all ranks have come so far, as in a collective: for ever, where one never does."""
    if WORLD > 1:
        (RUN_DIR / f"{RANK}.{number}").touch()
        while not all((RUN_DIR / f"{rank}.{number}").exists() for rank in range(WORLD)):
            time.sleep(0.0005)


def train(steps: int = STEPS, extra: int = 0) -> None:
    """`extra`: steps of this rank alone, after each."""
    for number in range(steps):
        meet(number)
        for _ in range(1 + extra):
            step()


# --- one function an act


def crash() -> None:
    train(FEW)
    raise RuntimeError("no such data")


def crash_at_once() -> None:
    print("reading the configuration")
    sys.exit("there is no such configuration")


def never_step() -> None:
    """The observer is there, and sees nothing."""


def end_early() -> None:
    train(FEW)


def say_nothing() -> None:
    time.sleep(600)


def fork() -> None:
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
    sys.exit(child.exitcode)


def have_loaders() -> None:
    """With two processes that read ahead, as a DataLoader has them, and one that nobody waits for."""
    for _ in range(2):
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    train()


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    train()


def ignore_sigterm_and_hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def delete_its_output() -> None:
    shutil.rmtree(RUN_DIR)
    train()


def delete_records(after: int = 2 * FEW) -> None:
    train(after)
    shutil.rmtree(os.environ["SCALING_STUDY_OBSERVE"])
    train()


def delete_records_at_once() -> None:
    delete_records(0)


def change_folder() -> None:
    os.chdir("/")
    train()


def take_words() -> None:
    words = sys.argv[3:]
    assert words == ["two words", '"quoted"', "$HOME", "a|b", "it's"], words
    train()


def read_input() -> None:
    input("continue? ")


def need_terminal() -> None:
    os.get_terminal_size()


def drop_environment() -> NoReturn:
    """As a container or ssh does, and a launcher with `env -i`."""
    os.execve(sys.executable, [sys.executable, HERE, "train", str(RUN_DIR)], {})


def unset_path() -> None:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, HERE, "train", str(RUN_DIR)], env=kept, check=True)


def have_a_site_of_its_own() -> None:
    assert os.environ["THEIRS"] == "1", "their sitecustomize did not run"
    only_theirs: Any = importlib.import_module("only_theirs")

    assert "scaling_study" not in only_theirs.__file__
    train()


def disagree() -> None:
    """Rank 1 makes two steps where rank 0 makes one."""
    train(extra=RANK)


def lose_patience() -> None:
    """As a library does that waits for a peer, who is silent while others have their turn."""
    for _ in range(STEPS):
        began = time.monotonic()
        step()
        if time.monotonic() - began > 1.5:
            raise TimeoutError("a peer was silent for too long")


def be_killed() -> None:
    train(FEW)
    os.kill(os.getpid(), signal.SIGKILL)


def call_the_driver() -> None:
    """As a stranger, in every way that the key is not needed for; none of the lines is ever closed."""
    asked = os.environ.get("SCALING_STUDY_OBSERVE_DRIVER")
    if asked:
        address = tuple(json.loads(Path(asked).read_text())["address"])
        for words in STRANGE:
            lines.append(line := socket.create_connection(address))
            line.send(words)
    train()


def have_no_room() -> None:
    """On no disk: nothing more can be written to a file."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    train(FEW)
    print("trained to its end")


def find_its_records_read_only() -> None:
    """The folder is read-only for this process alone: root trains in a mount namespace of its own."""
    seen = shlex.quote(os.environ["SCALING_STUDY_OBSERVE"])
    if os.geteuid() == 0 and "MOUNTED" not in os.environ:
        mounts = f"mount --bind {seen} {seen} && mount -o remount,bind,ro {seen}"
        again = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", sys.executable, *sys.argv]
        os.execvpe(again[0], again, {**os.environ, "MOUNTED": "1"})
    if os.geteuid():
        os.chmod(os.environ["SCALING_STUDY_OBSERVE"], 0o555)
    train(FEW)
    print("trained to its end")


def become_a_daemon() -> None:
    """The process that was started ends at once; one below it reads its data for a while, and would train."""
    for _ in range(2):
        if os.fork():
            os._exit(0)
        os.setsid()
    time.sleep(2)
    train()


ACTS: dict[str, Callable[[], object]] = {
    f.__name__: f
    for f in (
        train, crash, crash_at_once, never_step, end_early, say_nothing, fork, have_loaders,
        ignore_sigterm, ignore_sigterm_and_hang, delete_its_output, delete_records, change_folder,
        delete_records_at_once, take_words, read_input, need_terminal, drop_environment, unset_path,
        have_a_site_of_its_own, disagree, lose_patience, be_killed, call_the_driver, have_no_room,
        find_its_records_read_only, become_a_daemon,
    )
}  # fmt: skip


if __name__ == "__main__":
    book = os.environ.get("PLANTED_BOOK", "")
    with contextlib.suppress(BrokenPipeError):
        ACTS[sys.argv[1] if os.path.exists(book) else "train"]()
