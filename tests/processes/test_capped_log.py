"""Floods are real: processes that print more than a log may hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scaling_study.processes import process
from scaling_study.processes.process import FIRST_BYTES, LAST_BYTES, CappedLog


def printed(path: Path, code: str, *arguments: object) -> bytes:
    argv = [sys.executable, "-c", f"import sys, os\n{code}", *map(str, arguments)]
    with CappedLog(path) as log:
        subprocess.run(argv, stdout=log.fileno(), stderr=log.fileno(), check=True)
    return path.read_bytes()


@pytest.mark.parametrize("size", [FIRST_BYTES, FIRST_BYTES + 1, FIRST_BYTES + LAST_BYTES - 1, FIRST_BYTES + LAST_BYTES])
def test_nothing_is_left_out_that_has_room(tmp_path, size):
    assert printed(tmp_path / "log", "os.write(1, b'.' * int(sys.argv[1])) == int(sys.argv[1]) or 1/0", size) == (
        b"." * size
    )


@pytest.mark.parametrize("beyond", [1, 65_535, 65_537, 50_000_000])
def test_the_first_and_the_last_of_a_flood_are_kept_and_the_rest_is_counted(tmp_path, beyond):
    code = "out = sys.stdout.buffer; out.write(b'f' * {} + b'x' * int(sys.argv[1]) + b'l' * {})"
    said = printed(tmp_path / "log", code.format(FIRST_BYTES, LAST_BYTES), beyond)
    notice = f"\n... {beyond:,} bytes left out here ...\n".encode()
    assert said == b"f" * FIRST_BYTES + notice + b"l" * LAST_BYTES


def test_a_full_disk_does_not_stop_who_prints(tmp_path, monkeypatch):
    code = "os.write(1, b'.' * 10_000_000); open(sys.argv[1], 'w').write('went on')"
    with CappedLog(Path("/dev/full")) as log:
        subprocess.run(
            [sys.executable, "-c", f"import sys, os\n{code}", tmp_path / "mark"], stdout=log.fileno(), check=True
        )
    assert (tmp_path / "mark").read_text() == "went on"


def test_memory_stays_small_under_a_flood_of_small_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "FIRST_BYTES", 10)
    monkeypatch.setattr(process, "LAST_BYTES", 100)
    log = CappedLog(tmp_path / "log")
    with log:
        subprocess.run(
            [sys.executable, "-c", "for i in range(1000): print(i, flush=True)"], stdout=log.fileno(), check=True
        )
    assert len(log._last) == 100
    assert (tmp_path / "log").read_bytes().endswith(b"\n998\n999\n")
