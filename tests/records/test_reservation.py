"""Room for a record, on disks that really are full. Where mounting is not allowed, those tests are skipped."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaling_study.records import disk as reservation
from scaling_study.settings import CHECKOUT

MIB = 1 << 20


def test_what_is_reserved_is_really_taken_and_given_back(tmp_path: Path) -> None:
    with reservation.reserved(tmp_path / "record.json", MIB):
        beside = tmp_path / ".record.json.room"
        assert beside.stat().st_blocks * 512 >= MIB
    assert os.listdir(tmp_path) == []


def test_what_is_filled_in_has_its_name_and_its_own_size(tmp_path: Path) -> None:
    with reservation.reserved(tmp_path / "record.json", MIB) as place:
        place.fill(b"{}")
        assert os.listdir(tmp_path) == ["record.json"]
    assert (tmp_path / "record.json").read_bytes() == b"{}"
    assert (tmp_path / "record.json").stat().st_blocks * 512 < MIB


def test_more_than_was_reserved_fits_where_there_is_room(tmp_path: Path) -> None:
    with reservation.reserved(tmp_path / "record.json", MIB) as place:
        place.fill(b"x" * 3 * MIB)
    assert (tmp_path / "record.json").stat().st_size == 3 * MIB


@pytest.mark.parametrize("missing", [errno.EOPNOTSUPP, errno.EINVAL, None])
def test_zeros_are_as_good_where_the_file_system_knows_no_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int | None
) -> None:
    def refuse(*_: int) -> None:
        raise AttributeError("posix_fallocate") if missing is None else OSError(missing, os.strerror(missing))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with reservation.reserved(tmp_path / "record.json", 3 * MIB // 2) as place:
        beside = tmp_path / ".record.json.room"
        assert beside.stat().st_size == 3 * MIB // 2 and beside.stat().st_blocks * 512 >= 3 * MIB // 2
        place.fill(b"{}")
    assert (tmp_path / "record.json").read_bytes() == b"{}"


def test_twice_the_largest_record_and_never_less_than_a_mebibyte() -> None:
    assert [reservation.bytes_for(size) for size in (0, 5, MIB, 10 * MIB)] == [MIB, MIB, 2 * MIB, 20 * MIB]


def test_a_folder_that_is_gone_is_an_error_and_no_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), reservation.reserved(tmp_path / "gone" / "record.json", MIB):
        pass
    folder = tmp_path / "trial"
    folder.mkdir()
    with pytest.raises(FileNotFoundError), reservation.reserved(folder / "record.json", MIB) as place:
        (folder / ".record.json.room").unlink()
        folder.rmdir()
        folder.mkdir()  # a rank makes it again
        place.fill(b"{}")
    assert os.listdir(folder) == []


FULL_DISK = """
import errno, json, sys
from pathlib import Path
from scaling_study.records import disk as room
disk = Path(sys.argv[1])
said = {}

def flood():
    with (disk / "flood").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            return error.errno

with room.reserved(disk / "record.json", 1 << 20) as place:
    said["flood"] = flood()
    said["free"] = room.free_bytes(disk)
    place.fill(b"x" * (1 << 20))
said["record"] = (disk / "record.json").stat().st_size
try:
    with room.reserved(disk / "second.json", 1 << 20):
        said["second"] = 0
except OSError as error:
    said["second"] = error.errno
said["left"] = sorted(path.name for path in disk.iterdir())
print(json.dumps(said))
"""


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


def test_a_record_still_fits_when_the_disk_has_been_filled(tmp_path: Path) -> None:
    said = json.loads(on_a_small_disk(FULL_DISK, tmp_path).stdout)
    assert said["flood"] == errno.ENOSPC and said["free"] < MIB
    assert said["record"] == MIB, "its blocks were promised"
    assert said["second"] == errno.ENOSPC and said["left"] == ["flood", "record.json"]
