"""The driver dies, or is told to: at any moment from its first import to its last figure.

One folder is hit again and again: each run goes on from what the one before left, until a last one may end. So every
injection but the last is followed by a run that is hit in its turn.
"""

from __future__ import annotations

import math
import os
import time

import faulted_studies as studies
import psutil
import pytest
import survivors
from driver_faults import FAULTS, Fault, check_last_words
from injection import Inject, Injection, moments
from ledger import TIMES
from sweeping import Driver, Sweep, SweepOf

# In the short form one folder is hit by each fault in turn, in the long form by one fault again and again.
HITS = {name: [name] * TIMES for name in FAULTS} if TIMES > 1 else {"each in turn": list(FAULTS)}


@pytest.mark.parametrize("hits", HITS.values(), ids=HITS)
def test_a_driver_that_is_hit_loses_nothing_and_the_next_goes_on(
    hits: list[str], sweep_of: SweepOf, inject: Inject
) -> None:
    repeats = 2 * max(len(hits) // 3, 2)
    sweep = sweep_of(studies.quick(3, repeats, under_mpi=1), PLANTED_SECONDS="0.25")
    previous: Injection | None = None
    for name, moment in zip(hits, moments(len(hits), 0.1, 2.9, hits[0]), strict=True):
        fault = FAULTS[name]
        driver, moment = start(sweep, fault, moment)
        with inject(sweep, name, moment=moment) as hit:
            begun = bool(driver.said())
            fault.hit(driver, sweep)
            driver.wait(120)
            hit.all_gone()
            hit.nothing_outside()
            hit.kept()
            if previous:
                previous.kept()
            check_last_words(hit, driver, fault, begun)
            previous = hit
    assert previous
    previous.goes_on(4 * repeats)


def start(sweep: Sweep, fault: Fault, moment: float) -> tuple[Driver, float]:
    """A driver at this moment of its life; at an earlier one if it did not live that long."""
    while True:
        driver = sweep.start(terminal=fault.terminal, through=fault.through)
        if fault.stops:  # an interpreter that has not come to our code yet does not know what to obey
            sweep.until(lambda pid=driver.pid: cpu_seconds(pid) > 0.2, driver=driver)
        time.sleep(max(0.0, driver.started + moment - time.monotonic()))
        if driver.code is None:
            return driver, moment
        moment /= 2


def cpu_seconds(pid: int) -> float:
    try:
        return sum(psutil.Process(pid).cpu_times()[:2])
    except psutil.NoSuchProcess:
        return math.inf


def test_the_supervisor_dies_and_the_driver_ends_what_it_watched_over(sweep_of: SweepOf, inject: Inject) -> None:
    """The trial that it watched over failed, and says so; the next has a supervisor again."""
    repeats = TIMES + 1
    sweep = sweep_of(studies.quick(0, repeats, under_mpi=1), PLANTED_SECONDS="1.0")
    driver, seen, hits = sweep.start(), set[str](), list[Injection]()
    for moment in moments(TIMES, 0.0, 0.9, "supervisor"):
        assert sweep.until(lambda: set(sweep.starts()) - seen, driver=driver), driver.said()
        (trial,) = set(sweep.starts()) - seen
        seen.add(trial)
        sweep.hold.touch()  # or on a loaded machine it might be over by that moment
        time.sleep(moment)
        everything = sweep.processes()
        (supervisor,) = survivors.supervisors(everything)
        with inject(sweep, "kill -9 of the supervisor", moment=moment) as hit:
            hits.append(hit)
            supervisor.kill()
            hit.all_gone([p for p in everything if p.pid != driver.pid])
            sweep.until(lambda trial=trial: trial in sweep.finished())
            hit.kept()
            record = sweep.outcomes().get(trial)
            hit.expect(record and record.status == "failed" and record.reason.startswith("watch: "), f"{record}")
    hit = hits[-1]
    hit.ends(driver, 1, "watch: ", "its log: ")
    hit.goes_on(repeats, "failed")


def test_a_second_driver_is_told_who_holds_the_folder(sweep_of: SweepOf, inject: Inject) -> None:
    sweep = sweep_of(studies.quick(2, 2), PLANTED_SECONDS="0.2")
    first = sweep.start()
    assert sweep.until(sweep.finished, driver=first), first.said()
    with inject(sweep, "two drivers on one folder", "environment") as hit:
        sweep.hold.touch()  # its next trial ends when the second driver has
        second = sweep.run(seconds=60)
        sweep.hold.unlink()
        hit.ends(second, 1, "is in use by another run", f"process {first.pid} since", "wait for it, or stop it")
        hit.expect(os.path.exists(f"/proc/{first.pid}"), "the first was disturbed")
        hit.ends(first, 0, "Tables, figures and records")
        hit.kept()
        hit.goes_on(4)
