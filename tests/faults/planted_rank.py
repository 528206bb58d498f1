"""Stands in for every framework's script: starts in no time, needs no torch, and misbehaves as it is told.

A whole report after PLANTED_SECONDS, unless PLANTED_BOOK (a JSON file: the trial's --seed -> a word) says
otherwise for this trial. While the file PLANTED_HOLD is there it does not end, so that what should have been ended
and was not is still there to be seen. Every start is a line in PLANTED_STARTS, by which running a trial twice is
noticed. Under a launcher of MPI it joins MPI for real, with its segments of shared memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANK = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
SIZE = ("WORLD_SIZE", "HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")


def flag(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def place(names: tuple[str, ...], default: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


FOLDER = Path(flag("--record"))
REPORT = FOLDER / "ranks" / f"rank-{place(RANK, 0)}.json"
KINDS_OF_GARBAGE = 10
STEP_SECONDS = [0.1] * 10
SECONDS = float(os.environ.get("PLANTED_SECONDS", "0.3"))
HOLD = Path(os.environ.get("PLANTED_HOLD", "/nowhere"))
CHANCE = random.Random(f"{os.environ.get('PLANTED_SEED')}/{FOLDER.name}")  # the same on every rank


def report() -> dict[str, Any]:
    """What a rank that did its work says: ten steps of a tenth of a second."""
    batch = int(flag("--batch-per-worker"))
    return {
        "rank": place(RANK, 0), "world_size": place(SIZE, 1), "local_rank": place(RANK, 0), "host": "",
        "pid": os.getpid(), "device": "cpu", "device_name": "", "cores": [], "threads": 1,
        "first_step_at": time.time(), "warmup_seconds": [], "step_seconds": STEP_SECONDS, "samples_per_step": batch,
        "samples_seen": 10 * batch, "tokens_seen": None, "phases": None, "parameters": 1, "allreduce_bytes": 0,
        "communication_bytes": {}, "peak_memory_bytes": None, "memory": {}, "loss_first": None, "loss_last": None,
        "data_source": "synthetic", "steps_per_epoch": 1, "gpu_utilization_percent": None, "energy_joules": None,
        "backend": {}, "versions": {}, "notes": [],
    }  # fmt: skip


def leave(text: str | bytes) -> None:
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_bytes(text if isinstance(text, bytes) else text.encode())


# --- one function a fault; each after a random part of the trial's usual time, and of one rank only


def hang(_: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def loop(_: str) -> None:
    while True:
        pass


def flood(_: str) -> None:
    """As much output as PLANTED_FLOOD_BYTES says, then a good report: the log is the only thing that is wrong."""
    left, line = int(os.environ["PLANTED_FLOOD_BYTES"]), b"step 1: loss 2.30, 40.0 images/sec, all is well\n" * 20_000
    while left > 0:
        left -= os.write(1, line)
    leave(json.dumps(report()))


def garbage(which: str) -> None:
    """What a broken disk or a broken script leaves: bytes, half a file, or JSON that means nothing."""
    good = report()
    kinds: list[str | bytes] = [
        CHANCE.randbytes(4096),
        b"",
        json.dumps(good)[: CHANCE.randrange(2, 600)],
        json.dumps([good]),
        json.dumps(good | {"step_seconds": "fast"}),
        json.dumps(good | {"step_seconds": [[0.1]] * 10, "samples_seen": None}),
        json.dumps(good | {"samples_per_step": "many", "rank": [0]}),
        json.dumps(good | {"step_seconds": [1e308] * 10}),
        json.dumps(good | {"cores": {}, "memory": [], "device": 7}),
        "[" * 200_000,
    ]
    assert len(kinds) == KINDS_OF_GARBAGE
    leave(kinds[int(which)] if which else CHANCE.choice(kinds))


def not_a_number(_: str) -> None:
    key = CHANCE.choice(["step_seconds", "first_step_at", "samples_seen", "loss_last"])
    value = CHANCE.choice([float("nan"), float("inf"), -float("inf")])
    leave(json.dumps(report() | {key: [0.1] * 9 + [value] if key == "step_seconds" else value}))


def silence(_: str) -> None:
    os._exit(0)


def grandchild(_: str) -> None:
    """A good report, and a daemon in a session of its own that holds nothing open and never ends."""
    leave(json.dumps(report()))
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.closerange(0, 64)
            time.sleep(600)
        os._exit(0)


def hold(megabytes: str) -> None:
    """So much memory, for ever: whoever limits it ends this."""
    held = bytearray(os.urandom(1 << 20)) * int(megabytes)
    time.sleep(600 + len(held) % 2)


FAULTS: dict[str, Callable[[str], None]] = {
    f.__name__: f for f in (hang, hold, loop, flood, garbage, not_a_number, silence, grandchild)
}


def main() -> None:
    with open(os.environ["PLANTED_STARTS"], "a", encoding="utf-8") as starts:
        starts.write(f"{FOLDER.name} {place(RANK, 0)} {os.getpid()}\n")
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
    book = Path(os.environ.get("PLANTED_BOOK", os.devnull))
    with contextlib.suppress(FileNotFoundError):
        word = json.loads(book.read_text(encoding="utf-8")).get(flag("--seed", "42"))
        if word and place(RANK, 0) == CHANCE.randrange(place(SIZE, 1)):
            time.sleep(CHANCE.uniform(0, SECONDS))
            what, _, which = word.partition(":")
            FAULTS[what](which)
            return
    time.sleep(SECONDS)
    while HOLD.exists():
        time.sleep(0.02)
    leave(json.dumps(report()))


if __name__ == "__main__":
    main()
