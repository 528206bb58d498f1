"""A rank that waits for the driver between two of its steps, so that commands take turns.

    rank   --> {"key", "rank", "world", "pid", "host"}    once it is warm: the driver stops it (SIGSTOP) until its turn
    driver --> {"do": "build"}                            how long do your steps take?
    driver --> {"do": "block", "steps": 12, ...}          make so many steps, then say how long each took
    driver --> {"do": "leave"}                            end here
    rank   --> {"error"}                                  it cannot be seen any more, and goes on without a driver

The driver left its address and a key in a file that only its user can read. Where the driver is gone, the run ends.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from scaling_study.observe.steps import UpTo

WARM_STEPS = 5  # the first is slow everywhere; DDP makes its buckets anew in the second
CONNECT_SECONDS = 30.0


class Held(UpTo):
    """May a rank go on after this step? Asks the driver, and waits for the answer.

    `asked`: the driver's file; `who`: the rank's identity; `tell`: writes what was seen, and returns the seconds of
    each step. All ranks of a command are asked after the same step, and told the same.
    """

    def __init__(self, asked: str, who: Callable[[], dict[str, Any]], tell: Callable[[], list[float]]) -> None:
        super().__init__(WARM_STEPS)
        self.asked, self.who, self.tell = asked, who, tell
        self.driver: Connection | None = None
        self.timed = 0  # steps of the block that has just ended
        self.has_measured = False  # the driver has the seconds of a block

    def go_on(self, done: int) -> bool:
        seconds = self.tell()
        if self.driver is None:
            self._call()
        else:
            self._say(steps=done, step_seconds=seconds[done - self.timed : done], changed=[])
            self.has_measured = True
        began = time.perf_counter()
        going = self._answer(done, seconds)
        self.waited_seconds += time.perf_counter() - began
        return going

    def anew(self) -> None:
        if self.has_measured:
            raise RuntimeError(
                "an optimiser, or observe.step, ended a step for the first time after a block was measured"
            )

    def give_up(self, why: str) -> None:
        """Tell the driver that this rank is not seen any more, and waits for it no more."""
        if self.driver is None:
            self._call(error=why)
        else:
            self._say(error=why)

    def _call(self, **more: Any) -> None:
        with open(self.asked, encoding="utf-8") as stream:
            told = json.load(stream)
        if "key" not in told:
            raise RuntimeError("the driver waits for no more processes: more of them train than was asked for")
        connected = socket.create_connection(tuple(told["address"]), CONNECT_SECONDS)
        connected.settimeout(None)
        self.driver = Connection(connected.detach())
        who = self.who()
        about = {"rank": who["rank"] or 0, "world": who["world"] or 1, "pid": os.getpid(), "host": socket.gethostname()}
        self._say(key=told["key"], **about, **more)

    def _answer(self, done: int, seconds: list[float]) -> bool:
        """Answer questions until one lets the rank go on, or ends it."""
        assert self.driver
        while True:
            try:
                asked = json.loads(self.driver.recv_bytes())
            except (EOFError, OSError):
                return False
            if asked["do"] == "block":
                self.timed = asked["steps"]
                self.until = done + self.timed + int(asked["untimed"])
                return True
            if asked["do"] == "leave":
                return False
            fastest = min(seconds[1:] or seconds)
            here = socket.gethostname()
            self._say(steps=done, step_seconds=fastest, host=here, resident_bytes=resident_bytes())

    def _say(self, **what: Any) -> None:
        assert self.driver
        self.driver.send_bytes(json.dumps(what).encode())


def resident_bytes() -> int:
    """Memory of this process and of those that it started: of what they share, each its share."""
    total = 0
    for pid in _tree(os.getpid()):
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as stream:
                total += sum(int(line.split()[1]) for line in stream if line.startswith("Pss:")) * 1024
        except OSError:
            continue  # it ended meanwhile
    return total


def _tree(pid: int) -> list[int]:
    found = [pid]
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as stream:
                children = stream.read().split()
        except OSError:
            continue
        for child in children:
            found += _tree(int(child))
    return found
