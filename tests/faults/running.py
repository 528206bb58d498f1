"""The trial that runs now, as seen from outside: its launcher, its ranks, and everything below the supervisor."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import survivors
from sweeping import Driver, Sweep

OF_FRAMEWORK = {"mpi_allreduce": "mpirun", "torch_ddp": "torchrun", "deepspeed_zero": "deepspeed", "single": "python"}


class Running:
    """One trial from the start of its launcher on."""

    def __init__(self, sweep: Sweep, driver: Driver, launcher: psutil.Process, trial: str) -> None:
        self.sweep, self.driver, self.launcher, self.trial = sweep, driver, launcher, trial
        horovodrun = "horovodrun --mpi" if "--mpi" in launcher.cmdline() else "horovodrun --gloo"
        self.kind = OF_FRAMEWORK.get(trial.split("-")[0], horovodrun)
        self.since = time.monotonic()

    def age(self) -> float:
        """Seconds since it was seen to start."""
        return time.monotonic() - self.since

    def processes(self) -> list[psutil.Process]:
        """The launcher and all below it, without driver and supervisor."""
        found = self.sweep.processes()
        others = {self.driver.pid, *(p.pid for p in survivors.supervisors(found))}
        return [p for p in found if p.pid not in others]

    def names(self, process: psutil.Process) -> bool:
        """Whether the process was started for this trial; a fork keeps its parent's words."""
        try:
            return self.trial in " ".join(process.cmdline())
        except psutil.Error:
            return False

    def ranks(self, seconds: float) -> list[psutil.Process]:
        """Both, as soon as there are two; fewer if the trial is over or time is up."""
        found: list[psutil.Process] = []
        deadline = time.monotonic() + seconds
        while len(found) < 2 and survivors.living(self.launcher) and time.monotonic() < deadline:
            found = survivors.ranks(self.processes(), self.trial)
            time.sleep(0.02)
        return found


def each_trial(sweep: Sweep, driver: Driver) -> Iterator[Running]:
    """Every trial of this run, as it starts, until the driver ends."""
    seen: set[str] = set()
    while driver.code is None:
        found = sweep.processes()
        for folder in sweep.results.glob("trials/[!.]*"):
            if folder.name not in seen and (started := survivors.launchers(found, folder.name)):
                seen.add(folder.name)
                try:
                    running = Running(sweep, driver, started[0], folder.name)
                except psutil.Error:  # it was that short
                    continue
                yield running
        time.sleep(0.02)
