"""Several configurations in one launch, each built once and measured in turn, as the driver says.          [torch]

    torchrun --standalone --nproc-per-node 2 scaling_study/worker/in_rounds.py LAUNCH.json      (launch/warm_group.py)

    driver --- "build 0" ---> every rank   builds it by its script's own `build`, warms it up; phases, bytes, memory
           --- "block 0" ---> every rank   a step that is not timed (no long one), a barrier, timed steps; then its
                                           report of all blocks so far goes into the trial's folder
           --- "leave" -----> every rank   leaves its peers and ends

A rank waits for what is next on a connection of its own, never inside a collective: it may be stopped there, by a
signal that it does not see, for as long as another group's turn lasts.
"""

from __future__ import annotations

import json
import math
import os
import runpy
import socket
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from scaling_study.measure import collector, memory
from scaling_study.measure.clock import Measurement
from scaling_study.measure.phases import now
from scaling_study.ranks import Ranks, as_launched
from scaling_study.records import store
from scaling_study.trial import Trial
from scaling_study.worker.global_state import GlobalState
from scaling_study.worker.left_behind import Traces, Watch
from scaling_study.worker.script import joined, write_error

Job = tuple[Trial, Path]  # a configuration, and the folder of its trial


def main(launch: Path) -> None:
    """Serve the driver that left `launch`: `{"address": [host, port], "key": ..., "script": path, "trials":
    [{"trial": trial.json's content, "folder": path}]}`."""
    asked = json.loads(launch.read_text(encoding="utf-8"))
    jobs = [(Trial.from_dict(each["trial"]), Path(each["folder"])) for each in asked["trials"]]
    sys.path.insert(0, str(Path(asked["script"]).parent))
    script = runpy.run_path(asked["script"], run_name="script")
    with (
        joined(script["join"], jobs[0][0], launch.parent) as ranks,
        Connection(socket.create_connection(tuple(asked["address"])).detach()) as driver,
    ):
        say(driver, key=asked["key"], rank=ranks.rank, pid=os.getpid(), host=socket.gethostname())
        Serving(jobs, ranks, script["build"]).until_left(driver)


class Serving:
    """One rank of a launch: what it has built, and what the driver may ask for."""

    def __init__(self, jobs: list[Job], ranks: Ranks, build: Callable[[Trial, Ranks], Any]) -> None:
        self.jobs, self.ranks, self.build_training = jobs, ranks, build
        self.measurements: dict[int, Measurement] = {}
        self.first = GlobalState()  # before anything was built
        self.states: dict[int, GlobalState] = {}  # of each configuration, as it left them
        self.watches: dict[int, Watch] = {}  # over what each leaves behind for good

    def until_left(self, driver: Connection) -> None:
        """Answer each request, `{"do": "block", "trial": 0, ...}`, until there is none or the driver is gone."""
        with collector.settled():
            while (asked := json.loads(driver.recv_bytes()))["do"] != "leave":
                answer = getattr(self, asked.pop("do"))
                index = asked.pop("trial")
                try:
                    self.states.get(index, self.first).restore()
                    reply = answer(index, **asked)
                except BaseException as error:
                    write_error(self.jobs[index][1], error)
                    error.written = True  # type: ignore[attr-defined]
                    say(driver, error=f"{type(error).__name__}: {error}")
                    raise
                say(driver, **reply)

    def build(self, index: int) -> Mapping[str, Any]:
        """Build a configuration, warm it up and look at its steps. The fastest, and the memory of the process."""
        trial, before = as_launched(self.jobs[index][0], self.ranks), Traces()
        memory.release_workspaces(self.ranks.devices)
        others = memory.held_on(self.ranks.devices)
        measurement = Measurement(self.build_training(trial, self.ranks), trial, self.ranks)
        measurement.memory.beside(others)
        measurement.warm_up()
        before.check_build()
        self.measurements[index], self.states[index], self.watches[index] = measurement, GlobalState(), Watch()
        measurement.inspect()
        collector.settle()
        measurement.memory.settle()
        now(*self.ranks.devices)  # before it is stopped
        fastest = min(measurement.warmup_seconds, default=math.inf)  # unknown where nothing was to warm up
        shares = {"resident_bytes": resident_bytes(), "gpu_share": memory.used_share(self.ranks.devices)}
        return {"step_seconds": fastest, "host": socket.gethostname(), **shares}

    def block(self, index: int, round: int, steps: int, untimed: bool) -> Mapping[str, Any]:
        """So many timed steps after a barrier and, if that is asked for, an `untimed` one. Their seconds, and what they
        changed."""
        measurement, before = self.measurements[index], Traces()
        if round == 0:
            measurement.forget()  # what was timed before rounds began anew
        if untimed:
            measurement.step(next(measurement.workload.batches))
        self.ranks.total([0.0])  # a barrier
        seconds = measurement.timed_block(round, steps)
        self.watches[index].check_block(before)
        changed = self.states[index].leave()
        store.write_rank(self.jobs[index][1], measurement.report())  # now: whatever ends this launch, it is there
        return {"step_seconds": seconds, "changed": changed}


def say(driver: Connection, **what: Any) -> None:
    driver.send_bytes(json.dumps(what).encode())


def resident_bytes() -> int:
    """Memory of this process, of what it has in common with others its share."""
    return int(psutil.Process().memory_full_info().pss)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
