"""Results that can no longer be written: full, gone or read-only disks in the middle of a sweep, all of them real.

The fault suite (faults/test_disk_faults.py) does the same to whole sweeps from outside.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from planted_sweeps import run

from scaling_study.errors import HostError
from scaling_study.processes import process
from scaling_study.records import results, store
from scaling_study.settings import CHECKOUT
from scaling_study.study.plan import Plan

PlanFor = Callable[..., Plan]


def started(folder: Path, count: int) -> None:
    """Wait until so many trials have a log."""
    while len(list(folder.glob("trials/*/log.txt"))) < count:
        time.sleep(0.02)


@pytest.mark.slow
def test_a_folder_that_vanishes_ends_the_sweep_with_one_sentence(
    plan_for: PlanFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS", "1")
    folder = tmp_path / "results"

    def soon(interruption: process.Interruption) -> None:
        threading.Thread(target=lambda: (started(folder, 2), shutil.rmtree(folder, ignore_errors=True))).start()

    with pytest.raises(HostError, match=r"results is gone \(No such file or directory\): it was moved or removed"):
        run(plan_for("take_a_second", repeats=3, max_repeats=3), folder, after=soon)
    assert not list(folder.glob("trials/*/record.json"))


@pytest.mark.slow
def test_a_folder_that_was_moved_goes_on_from_its_new_place(
    plan_for: PlanFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS", "1")
    folder, moved = tmp_path / "results", tmp_path / "moved"
    plan = plan_for("take_a_second", repeats=3, max_repeats=3)

    def soon(interruption: process.Interruption) -> None:
        threading.Thread(target=lambda: (started(folder, 2), folder.rename(moved))).start()

    with pytest.raises(HostError, match="finished trials are kept"):
        run(plan, folder, after=soon)
    assert len(list(moved.glob("trials/*/record.json"))) == 1
    monkeypatch.setenv("SECONDS", "0")
    rest, _ = run(plan, moved)
    assert (len(rest.kept), len(rest.ended)) == (1, 2)


@pytest.mark.parametrize("said", ["[Errno 28] No space left on device: '/tmp/x'", "[Errno 122] Disk quota exceeded"])
def test_a_rank_that_found_the_disk_full_has_not_failed(plan_for: PlanFor, tmp_path: Path, said: str) -> None:
    plan = plan_for("take_a_second")
    results.open_results(tmp_path, plan)
    with pytest.raises(HostError) as stopped:
        results.raise_if_unwritable(tmp_path, [{"rank": 3, "message": said}])
    assert f"no space left on the disk (rank 3: {said}); finished trials are kept" in str(stopped.value)
    results.raise_if_unwritable(tmp_path, [{"rank": 3, "message": "the planted bug"}])


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.EROFS, "Read-only file system"), (errno.EIO, "Input/output error"), (errno.ESTALE, "Stale file handle")],
)
def test_each_way_of_not_being_written_is_said(plan_for: PlanFor, tmp_path: Path, number: int, said: str) -> None:
    results.open_results(tmp_path, plan_for("take_a_second"))
    error = OSError(number, os.strerror(number), "somewhere")
    assert f"{tmp_path} can no longer be written to ({said}); finished trials" in str(
        results.write_error(tmp_path, error)
    )


def test_an_error_that_is_not_the_folders_stays_what_it_is(plan_for: PlanFor, tmp_path: Path) -> None:
    results.open_results(tmp_path, plan_for("take_a_second"))
    with pytest.raises(OSError, match="Too many open files"):
        raise results.write_error(tmp_path, OSError(errno.EMFILE, "Too many open files"))


SWEEP = """
import json, os, sys, threading, time
from pathlib import Path
sys.path.insert(0, "tests")
import planted_sweeps as planted
from scaling_study.errors import HostError
disk = Path(sys.argv[1])
os.environ["SECONDS"] = "1"
for script in ("take_a_second", "crash_when_full"):
    planted.TABLE[script] = planted.framework(script)

def sweep(plan, after=None, seen=None):
    seen, said = seen or planted.Seen(), ""
    job = planted.sweep.Run(plan, disk / "results")
    try:
        job.open()
        with planted.process.Interruption() as interruption:
            if after:
                threading.Thread(target=after, daemon=True).start()
            job.run(seen, interruption)
    except HostError as trouble:
        said = str(trouble)
    return {"said": said, "ended": [r.status for r in seen.ended], "kept": len(seen.kept)}

def started(count):
    while len(list(disk.glob("results/trials/*/log.txt"))) < count:
        time.sleep(0.02)

def fill():
    started(2)
    with (disk / "flood").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
"""

FULL = (
    SWEEP
    + """
plan = planted.plan("take_a_second", repeats=4, max_repeats=4)
full, still = sweep(plan, fill), sweep(plan)
(disk / "flood").unlink()
print(json.dumps([full, still, sweep(plan)]))
"""
)

FAILS = (
    SWEEP
    + """
plan = planted.plan("crash_when_full", repeats=3, max_repeats=3)
os.environ["FLOOD"] = str(disk / "flood")
full = sweep(plan)
(disk / "flood").unlink()
del os.environ["FLOOD"]
print(json.dumps([full, sweep(plan)]))
"""
)

READ_ONLY = (
    SWEEP
    + """
import subprocess
plan = planted.plan("take_a_second", repeats=3, max_repeats=3)

class Remounting(planted.Seen):  # between two trials: the kernel refuses it while a file is open for writing
    def starts(self, trial, planned):
        super().starts(trial, planned)
        if len(self.started) == 2:
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

read_only = sweep(plan, seen=Remounting())
subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
print(json.dumps([read_only, sweep(plan)]))
"""
)


def on_a_small_disk(program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program with the path of an empty file system of 4 MiB, in a mount namespace of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=4m none "{disk}" && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", program, str(disk)]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=600, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare on this machine")
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mounting here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_a_disk_that_fills_up_costs_at_most_the_running_trial(tmp_path: Path) -> None:
    full, still, goes_on = json.loads(on_a_small_disk(FULL, tmp_path).stdout)
    assert "no space left on the disk; finished trials are kept: free disk space" in full["said"]
    assert set(full["ended"]) == {"ok"} and 1 <= len(full["ended"]) <= 2
    assert still == {"said": still["said"], "ended": [], "kept": still["kept"]} and "no space left" in still["said"]
    assert goes_on["said"] == "" and goes_on["kept"] == len(full["ended"])
    assert goes_on["ended"] == ["ok"] * (4 - goes_on["kept"])


@pytest.mark.slow
def test_a_trial_that_fails_because_the_disk_is_full_is_not_recorded_as_failed(tmp_path: Path) -> None:
    full, goes_on = json.loads(on_a_small_disk(FAILS, tmp_path).stdout)
    assert "no space left on the disk" in full["said"] and full["ended"] == []
    assert goes_on == {"said": "", "ended": ["failed"] * 3, "kept": 0}


@pytest.mark.slow
def test_a_disk_that_becomes_read_only_ends_the_sweep_with_one_sentence(tmp_path: Path) -> None:
    read_only, goes_on = json.loads(on_a_small_disk(READ_ONLY, tmp_path).stdout)
    assert "can no longer be written to (Read-only file system); finished trials are kept" in read_only["said"]
    assert read_only["ended"] == ["ok"]
    assert goes_on["said"] == "" and (goes_on["kept"], len(goes_on["ended"])) == (1, 2)


def test_a_first_file_that_cannot_be_written_asks_for_another_place(tmp_path: Path) -> None:
    said = str(results.write_error(tmp_path, OSError(errno.EACCES, "Permission denied"), first=True))
    assert said == f"{tmp_path}: cannot write results there: Permission denied; choose another with --results"
    assert "no space left on the disk" in str(results.write_error(tmp_path, OSError(errno.ENOSPC, "full"), first=True))


def test_a_failed_write_of_a_record_leaves_the_trial_open_and_an_earlier_one_in_place(
    plan_for: PlanFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for("take_a_second")
    first, _ = run(plan, tmp_path)
    before = store.read_trial(tmp_path / "trials" / first.started[0])

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched, pytest.raises(HostError, match="Input/output error"):
        patched.setattr("scaling_study.records.store.write_record", broken)
        run(plan, tmp_path, retry=frozenset({"ok"}))
    assert store.read_trial(tmp_path / "trials" / first.started[0]) == before
    assert run(plan, tmp_path)[0].kept == first.started
