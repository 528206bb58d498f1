"""Processes, files and segments are really left behind here."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from eventually import until

from scaling_study.processes import leftovers

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_marked_processes_are_found_and_ended_and_others_are_not(tmp_path):
    mine = subprocess.Popen(SLEEP, env={**os.environ, leftovers.MARK: str(tmp_path / "mine")}, start_new_session=True)
    other = subprocess.Popen(SLEEP, env={**os.environ, leftovers.MARK: str(tmp_path / "other")})
    try:
        for each in (mine, other):  # exec puts the new environment in place a moment after it returns
            until(lambda each=each: leftovers.MARK in psutil.Process(each.pid).environ())
        (ended,) = leftovers.clean(tmp_path / "mine")
        assert ended.startswith("python") and ended.endswith(f" (process {mine.pid})")
        assert mine.wait(300) in (0, -9)  # 0: psutil has already collected it
        assert other.poll() is None
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()


def test_compiled_kernels_outlive_the_trial(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    said = leftovers.environment(tmp_path, tmp_path / "t")
    assert said["TMPDIR"] == str(tmp_path / "t")
    assert said["TORCHINDUCTOR_CACHE_DIR"].startswith(os.path.join(tempfile.gettempdir(), "torchinductor_"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert leftovers.environment(tmp_path, tmp_path / "t")["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"


def test_a_home_that_is_no_folder_is_one_of_the_trials_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "HOME" not in leftovers.environment(tmp_path, tmp_path / "t")
    monkeypatch.setenv("HOME", "/nonexistent")
    assert leftovers.environment(tmp_path, tmp_path / "t")["HOME"] == str(tmp_path / "t")


@pytest.fixture
def all_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where these tests run in a container with its host's memory."""
    monkeypatch.setattr(leftovers, "_others_are_hidden", lambda: False)


def test_segments_that_nobody_uses_are_removed_and_no_others(shared, all_to_be_seen):
    (shared / "sm_segment.old").write_bytes(b"x" * 4096)
    os.utime(shared / "sm_segment.old")
    time.sleep(0.05)
    since = leftovers.clock()
    time.sleep(0.05)
    for name in ("sm_segment.vm.0.1.0", "nccl-abc", "somebody-elses", "torch_1_2_3"):
        (shared / name).write_bytes(b"x" * 4096)
    with (shared / "torch_1_2_3").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        leftovers.remove_segments(since)
        assert {p.name for p in shared.iterdir()} == {"sm_segment.old", "somebody-elses", "torch_1_2_3"}
    leftovers.remove_segments(since)
    assert {p.name for p in shared.iterdir()} == {"sm_segment.old", "somebody-elses"}


MAKES = """
import multiprocessing, sys
made = multiprocessing.get_context("spawn").Semaphore()
print(made._semlock.name, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
@pytest.mark.parametrize("end", ["lives", "killed"])
def test_a_semaphore_goes_with_its_process_and_not_before(end, all_to_be_seen):
    """Whoever made it has it mapped under a name that is no more."""
    since = leftovers.clock()
    with subprocess.Popen(
        [sys.executable, "-c", MAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as it:
        path = Path(f"/dev/shm/sem.{it.stdout.readline().strip().removeprefix('/')}")
        assert path.exists()
        if end == "killed":
            for tracker in psutil.Process(it.pid).children():  # of resources: it would remove the semaphore
                tracker.kill()
            it.kill()
            it.wait()
        leftovers.remove_segments(since)
        assert path.exists() == (end == "lives")
        if end == "lives":
            it.stdin.close()
            assert it.wait(300) == 0


INSIDE = ["unshare", "--pid", "--fork", "--mount-proc"]
HIDES = subprocess.run([*INSIDE, "true"], capture_output=True).returncode == 0 if shutil.which("unshare") else False


@pytest.mark.skipif(not HIDES, reason="no process namespaces for this user")
def test_where_processes_are_hidden_nothing_is_taken_from_them(tmp_path):
    """As in a container with its host's /dev/shm: whose segments those are is not to be seen."""
    code = (
        "import os; from pathlib import Path; from scaling_study.processes import leftovers; "
        f"leftovers.SHARED_MEMORY = Path({str(tmp_path)!r}); "
        f"leftovers.FIRST_IPC = os.readlink('/proc/self/ns/ipc') if {{}} else ''; leftovers.remove_segments(0.0)"
    )
    segment = tmp_path / "torch_1_2_3"
    segment.write_bytes(b"x")
    for shared in (True, False):
        done = subprocess.run([*INSIDE, sys.executable, "-c", code.format(shared)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert segment.exists() == shared


def test_a_long_path_for_temporary_files_is_replaced_by_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets lie in them, of processes that read data: their paths have at most 107 bytes."""
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(long))
    folder = leftovers.temporary_folder(tmp_path / "mine")
    assert len(str(folder)) < 50 and folder.is_dir()
    leftovers.clean(tmp_path / "mine")
    assert not folder.exists()
    monkeypatch.setattr(leftovers, "SHORT_PLACES", ("/no/such",))
    assert leftovers.temporary_folder(tmp_path / "mine").parent == long, "there is none"
