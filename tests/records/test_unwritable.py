"""Results that can no longer be written: what is said, and what is not recorded as a failure.

The fault suite (faults/test_disk_faults.py) fills, takes away and remounts real disks in the middle of sweeps.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planted_sweeps import run

from scaling_study.errors import HostError
from scaling_study.records import results, store
from scaling_study.records.schema import RankError
from scaling_study.study.plan import Plan

PlanFor = Callable[..., Plan]


@pytest.mark.parametrize("said", ["[Errno 28] No space left on device: '/tmp/x'", "[Errno 122] Disk quota exceeded"])
def test_a_rank_that_found_the_disk_full_has_not_failed(plan_for, tmp_path, monkeypatch, said):
    plan = plan_for("take_a_second")
    results.open_results(tmp_path, plan)
    with pytest.raises(HostError) as stopped:
        results.raise_if_unwritable(tmp_path, [RankError(3, 0.0, "OSError", said, "")])
    assert f"no space left on the disk (rank 3: {said}); finished trials are kept" in str(stopped.value)
    bug = [RankError(3, 0.0, "ValueError", "the planted bug", "")]
    results.raise_if_unwritable(tmp_path, bug)
    monkeypatch.setattr(results.shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(HostError, match="no space left on the disk"):
        results.raise_if_unwritable(tmp_path, bug)
    (tmp_path / "study.json").unlink()
    with pytest.raises(HostError, match="is gone"):
        results.raise_if_unwritable(tmp_path, bug)


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


def test_a_first_file_that_cannot_be_written_asks_for_another_place(tmp_path: Path) -> None:
    said = str(results.write_error(tmp_path, OSError(errno.EACCES, "Permission denied"), first=True))
    assert said == f"{tmp_path}: cannot write results there: Permission denied; choose another with --results"
    assert "no space left on the disk" in str(results.write_error(tmp_path, OSError(errno.ENOSPC, "full"), first=True))


def test_a_failed_write_of_a_record_leaves_the_trial_open_and_an_earlier_one_in_place(plan_for, tmp_path, monkeypatch):
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


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_record_that_cannot_be_read_stops_the_run_and_is_not_overwritten(code, plan_for, tmp_path, monkeypatch):
    plan = plan_for("take_a_second")
    first, _ = run(plan, tmp_path)
    path = tmp_path / "trials" / first.started[0] / "record.json"
    before, opened = path.read_bytes(), os.open

    def denied(name: object, *rest: Any, **options: Any) -> int:
        if name == path:
            raise OSError(code, os.strerror(code))
        return opened(name, *rest, **options)  # type: ignore[call-overload]

    with monkeypatch.context() as patched, pytest.raises(HostError) as stopped:
        patched.setattr(os, "open", denied)
        run(plan, tmp_path)
    assert str(path) in str(stopped.value) and os.strerror(code) in str(stopped.value)
    assert path.read_bytes() == before
    assert run(plan, tmp_path)[0].kept == first.started


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(HostError) as refused, results.locked(tmp_path):
        pass
    said = str(refused.value)
    assert "No locks available" in said and "--results" in said and "resumes" not in said
