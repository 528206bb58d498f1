"""How a driver is hit, and what is right then."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import eventually
import survivors
from injection import Injection
from sweeping import Driver, Sweep

SHELL = ("sh", "-c", '"$@"; exit $?', "sh")  # stays: the leader of the session in which the driver is


@dataclass(frozen=True)
class Fault:
    """How a driver is hit, and what is right then."""

    hit: Callable[[Driver, Sweep], None]
    signal: signal.Signals  # what the driver gets; before it has begun, that may simply end it
    stops: bool = True  # it can be obeyed: exit code 130, and words about how to go on
    terminal: bool = False
    through: tuple[str, ...] = ()


def kill(driver: Driver, sweep: Sweep) -> None:
    driver.send(signal.SIGKILL)


def kill_session(driver: Driver, sweep: Sweep) -> None:
    survivors.end(survivors.session(driver.pid))


def end_all(driver: Driver, sweep: Sweep) -> None:
    """Nobody ends anything, and what lay in memory, or is cleared at start, is gone."""
    while processes := sweep.processes():
        survivors.end(processes)
        eventually.gone(processes, 3.0)
    shared_memory = list(sweep.seen(Path("/dev/shm")).iterdir()) if sweep.namespace else []
    for path in (*shared_memory, *sweep.temporary.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def reboot(driver: Driver, sweep: Sweep) -> None:
    """Everything at once, and what was being written lies there by halves, as after a crash of the machine."""
    end_all(driver, sweep)
    whole = next(iter(sweep.finished().values()), b'{"schema": 1, "status": "ok"}')
    for folder in sweep.results.glob("trials/[!.]*"):
        if not (folder / "record.json").exists():
            (folder / "record.json").write_bytes(whole[: len(whole) // 2])
            (folder / ".record.json.x1y2z3a4").write_bytes(whole[: len(whole) // 3])
    for half in (".study.json", ".results.csv", "figures/.throughput.png"):  # named as mkstemp would
        if (place := sweep.results / f"{half}.x1y2z3a4").parent.exists():
            place.write_bytes(b'{"schema": ')


FAULTS = {
    "kill -9 of the driver": Fault(kill, signal.SIGKILL, stops=False),
    "kill -9 of the session's leader and all in it": Fault(kill_session, signal.SIGKILL, stops=False, through=SHELL),
    "SIGTERM to the driver": Fault(lambda driver, _: driver.send(signal.SIGTERM), signal.SIGTERM),
    "SIGHUP to the driver": Fault(lambda driver, _: driver.send(signal.SIGHUP), signal.SIGHUP),
    "Ctrl-C": Fault(lambda driver, _: driver.press_ctrl_c(), signal.SIGINT, terminal=True),
    "terminal closed": Fault(lambda driver, _: driver.close_terminal(), signal.SIGHUP, terminal=True),
    "reboot": Fault(reboot, signal.SIGKILL, stops=False),
}
OTHERS = ("kill -9 of the session's leader and all in it", "terminal closed", "reboot")  # no other in rounds
IN_ROUNDS = {name: fault for name, fault in FAULTS.items() if name not in OTHERS}
IN_ROUNDS["kill -9 of all at once"] = Fault(end_all, signal.SIGKILL, stops=False)


def check_last_words(hit: Injection, driver: Driver, fault: Fault, begun: bool) -> None:
    """How it ended, and what it said: nothing but its end, if it had not begun."""
    code, said = driver.code, driver.said()
    if not fault.stops or (not begun and code == -fault.signal):
        hit.expect(code == -fault.signal, f"exit code {code} instead of {-fault.signal}: {said[-300:]!r}")
    else:
        hit.expect(code == 130, f"exit code {code} instead of 130: {said[-300:]!r}")
        if begun and "terminal closed" not in hit.row.fault:  # where nobody could read it
            hit.said(driver, f"Stopped by {fault.signal.name}", "To resume: python")
    hit.expect("Traceback" not in said, f"a traceback: {said[-600:]!r}")
