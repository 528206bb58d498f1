"""A real sweep, started as a person starts it, that can be hit from outside.

Sweep: a study, a results folder and an environment, all that the next `python run_sweep.py` needs. Driver: one run of
it, a process in a session of its own, with or without a terminal; what it said, how it ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import eventually
import psutil
import survivors
from namespace import Namespace

from scaling_study.records import schema, store
from scaling_study.settings import CHECKOUT

BIN = Path(sys.executable).parent


class Sweep:
    """What one person does in one folder: the study is written there, and so are the results."""

    def __init__(
        self, folder: Path, checkout: Path, study: str, namespace: Namespace | None = None, file: str = "study.yaml",
        results: str = "results", **environment: str,
    ) -> None:  # fmt: skip
        self.folder, self.checkout, self.namespace, self.mark = folder, checkout, namespace, uuid.uuid4().hex
        self.temporary, self.starts_log = folder / "temporary", folder / "starts.txt"
        self.book, self.hold = folder / "book.json", folder / "hold"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.file, self.into = folder / file, folder / results
        self.file.write_text(study, encoding="utf-8")
        self.name = next(line.split()[1] for line in study.splitlines() if line.startswith("study:"))
        self.environment = {
            survivors.MARK: self.mark, "PYTHONPATH": str(checkout), "TMPDIR": str(self.temporary), "COLUMNS": "200",
            "TORCHINDUCTOR_CACHE_DIR": str(folder.parent / "kernels"), "PLANTED_SEED": "1",
            "PLANTED_STARTS": str(self.starts_log), "PLANTED_BOOK": str(self.book), "PLANTED_HOLD": str(self.hold),
            **environment,
        }  # fmt: skip
        self.runs, self.through = 0, tuple[str, ...]()  # a command that starts every run in its turn

    @property
    def planted(self) -> bool:
        """Whether its ranks only stand in for such that train."""
        return self.checkout != CHECKOUT

    @property
    def results(self) -> Path:
        """results/<study>, as seen from here."""
        return self.seen(self.into / self.name)

    def seen(self, path: Path) -> Path:
        return self.namespace.seen(path) if self.namespace else path

    def start(
        self, *options: str, terminal: bool = False, through: Sequence[str] = (), without: Sequence[str] = ()
    ) -> Driver:
        """Start `python run_sweep.py`, `through` a command that starts it in its turn, `without` some variables."""
        self.runs += 1
        program = [sys.executable, str(self.checkout / "run_sweep.py"), str(self.file)]
        argv = [*self.through, *through, *program, "--results", str(self.into), *options]
        env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **self.environment}
        env = {name: value for name, value in env.items() if name not in without}
        if self.namespace:
            argv = [*self.namespace.into(self.folder), *argv]
        return Driver(argv, env, self.folder, self.folder / f"said-{self.runs}.txt", terminal)

    def run(self, *options: str, seconds: float = 1200.0, **how: object) -> Driver:
        """Start it and wait for its end."""
        driver = self.start(*options, **how)  # type: ignore[arg-type]
        driver.wait(seconds)
        return driver

    def started_until(self, finished: int, *options: str) -> Driver:
        """Start it, and wait until so many trials are finished and the next one runs."""
        driver = self.start(*options)
        there = self.until(lambda: len(self.finished()) == finished and len(self.starts()) > finished, driver=driver)
        assert there, driver.said()
        return driver

    def processes(self) -> list[psutil.Process]:
        return survivors.of_sweep(self.mark, self.folder)

    def finished(self) -> dict[str, bytes]:
        """Every record that is whole, as it lies there, by trial id; those that are set aside while run again too."""
        found = {}
        for path in sorted(self.results.glob("trials/*/record.json")):  # .<id>.before comes before <id>
            with contextlib.suppress(store.UnreadableRecord, OSError):
                store.read_record(path)
                found[path.parent.name.removeprefix(".").removesuffix(".before")] = path.read_bytes()
        return found

    def outcomes(self) -> dict[str, schema.Record]:
        """The same, read."""
        found = {}
        for path in sorted(self.results.glob("trials/[!.]*/record.json")):
            with contextlib.suppress(store.UnreadableRecord):
                found[path.parent.name] = store.read_record(path)
        return found

    def starts(self) -> Counter[str]:
        """How often rank 0 of each trial was started."""
        with contextlib.suppress(FileNotFoundError):
            lines = self.starts_log.read_text(encoding="utf-8").splitlines()
            return Counter(line.split()[0] for line in lines if line.split()[1:2] == ["0"])
        return Counter()

    def until(
        self, what: Callable[[], object], seconds: float = 60.0, driver: Driver | None = None, every: float = 0.01
    ) -> bool:
        """Wait until `what` is true; False if it is not in time, or the driver ended before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if what():
                return True
            if driver and driver.code is not None:
                return bool(what())
            time.sleep(every)
        return False


SweepOf = Callable[..., Sweep]  # of the fixture that makes them


class Driver:
    """A running sweep. With a terminal it is the session leader of that terminal, as a shell's command nearly is."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: Path, output: Path, terminal: bool) -> None:
        self.output, self.started = output, time.monotonic()
        self._master: int | None = None
        if not terminal:
            with output.open("wb") as stream:
                self._process = subprocess.Popen(
                    argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                    start_new_session=True,
                )  # fmt: skip
            return
        self._master, slave = os.openpty()

        def own_the_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self._process = subprocess.Popen(
            argv, env={**env, "TERM": "xterm"}, cwd=folder, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=own_the_terminal,
        )  # fmt: skip
        os.close(slave)
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        """Keep what appears on the terminal; select, since a terminal that is being read cannot be closed."""
        with self.output.open("wb", buffering=0) as kept, contextlib.suppress(OSError, ValueError, TypeError):
            while (master := self._master) is not None:
                if select.select([master], [], [], 0.05)[0]:
                    kept.write(os.read(master, 65536))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None: it runs."""
        return self._process.poll()

    def said(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.output.read_text(encoding="utf-8", errors="replace")
        return ""

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None if it is still there."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            self.close_terminal()
        return self.code

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def press_ctrl_c(self) -> None:
        assert self._master is not None
        os.write(self._master, b"\x03")

    def close_terminal(self) -> None:
        """Hang up, as a closed window does."""
        if self._master is not None:
            time.sleep(0.1)  # the last words
            master, self._master = self._master, None
            self._listening.join(5.0)
            os.close(master)


# --- the trial that runs now, as seen from outside

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
        return self.trial in survivors.words(process)

    def ranks(self, seconds: float) -> list[psutil.Process]:
        """Both, as soon as there are two; fewer if the trial is over or time is up."""
        found: list[psutil.Process] = []
        deadline = time.monotonic() + seconds
        while len(found) < 2 and eventually.living(self.launcher) and time.monotonic() < deadline:
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
