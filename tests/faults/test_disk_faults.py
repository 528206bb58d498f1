"""What can befall a results folder: full, read-only, slow, gone, carried to another machine, its study edited."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import faulted_studies as studies
import pytest
from injection import Inject, Injection
from namespace import AS_NOBODY, Namespace, fill, own
from sweeping import Sweep, SweepOf

pytestmark = pytest.mark.long


def test_a_full_disk_costs_at_most_the_running_trial(sweep_of: SweepOf, inject: Inject, namespace: Namespace) -> None:
    sweep = sweep_of(studies.quick(2, 3), namespace=namespace, PLANTED_SECONDS="1.0")
    sweep.into.mkdir()
    namespace.memory_disk(sweep.into, "24m")
    driver = sweep.started_until(2)
    with inject(sweep, "disk full", "environment") as hit:
        ballast = fill(sweep.seen(sweep.into))
        hit.ended_by_a_full_disk(driver)
        again = sweep.run()
        hit.expect(again.code == 1, f"still full, but exit code {again.code}")
        hit.said(again, "no space left on the disk", "free disk space")
        hit.kept()
        ballast.unlink()
        hit.goes_on(6)


def test_read_only_results_are_said(sweep_of: SweepOf, inject: Inject, namespace: Namespace) -> None:
    sweep = sweep_of(studies.quick(2, 1), namespace=namespace)
    assert sweep.run("--max-trials", "1").code == 0
    with inject(sweep, "results read-only (mounted so)", "environment") as hit:
        namespace.mount("--bind", str(sweep.into), str(sweep.into))
        namespace.mount("-o", "remount,bind,ro", str(sweep.into))
        refused(hit, sweep, "cannot write results there: Read-only file system", "choose another with --results")
        namespace.do("umount", str(sweep.into))
        hit.goes_on(2)


def test_results_of_another_user_are_said(sweep_of: SweepOf, inject: Inject, nobody: Namespace) -> None:
    sweep = sweep_of(studies.quick(2, 1), namespace=nobody)
    assert sweep.run("--max-trials", "1").code == 0
    own(sweep.temporary, sweep.starts_log, sweep.folder)
    sweep.through = AS_NOBODY
    with inject(sweep, "results of another user (chmod)", "environment") as hit:
        refused(hit, sweep, "cannot write results there: Permission denied", "choose another with --results")
        own(sweep.into, *sweep.into.rglob("*"))
        hit.goes_on(2)


def test_slow_results_are_waited_for_and_never_half_there(sweep_of: SweepOf, inject: Inject, shim: Path) -> None:
    """Half a second for each write, fsync and rename; the driver is killed while a record is being written."""
    slow = {"LD_PRELOAD": str(shim), "SLOW_SECONDS": "0.3"}
    sweep = sweep_of(studies.quick(1, 2), PLANTED_SECONDS="0.2", **slow)
    sweep.environment["SLOW_FOLDER"] = str(sweep.into)
    driver = sweep.start()
    with inject(sweep, "results on a slow file system", "environment") as hit:
        hit.expect(sweep.until(lambda: half_written(sweep), driver=driver), f"no record was begun: {driver.said()}")
        driver.send(signal.SIGKILL)
        driver.wait(120)
        hit.all_gone()
        hit.kept()
        hit.goes_on(2)


def half_written(sweep: Sweep) -> bool:
    """A record on its way: ranks have reported, and what will be record.json is not empty any more."""
    for folder in sweep.results.glob("trials/[!.]*"):
        for half in folder.glob(".record.json*"):
            try:
                if (folder / "ranks").exists() and half.read_bytes()[:1] == b"{":
                    return True
            except OSError:  # renamed meanwhile
                pass
    return False


def test_results_that_vanish_are_said_and_found_again(sweep_of: SweepOf, inject: Inject) -> None:
    sweep = sweep_of(studies.quick(2, 3), PLANTED_SECONDS="0.6")
    driver = sweep.started_until(2)
    with inject(sweep, "results vanish during a trial", "environment") as hit:
        there, elsewhere = sweep.into / sweep.name, sweep.folder / "elsewhere"
        os.rename(there, elsewhere)
        hit.expect(driver.wait(120) == 1, f"exit code {driver.code} instead of 1")
        hit.all_gone()
        hit.said(driver, "is gone", "finished trials are kept; the same command resumes once it is back")
        hit.expect(not list(there.rglob("record.json")), "records in a folder that nobody knows")
        if there.exists():  # what the running rank made anew
            os.rename(there, sweep.folder / "made anew")
        os.rename(elsewhere, there)
        hit.kept()
        hit.goes_on(6)


def refused(hit: Injection, sweep: Sweep, *words: str) -> None:
    """The sweep says why it does not start, in one line, and touches nothing."""
    driver = sweep.run(seconds=60)
    hit.expect(driver.code == 1, f"exit code {driver.code} instead of 1")
    hit.said(driver, *words)
    hit.expect(len(driver.said().strip().splitlines()) == 1, "more than one line")
    hit.all_gone()
    hit.kept()
