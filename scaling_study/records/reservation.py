"""Disk space for a record, reserved before its trial starts: a disk that fills up costs at most the running trial.

    reserve    .record.json.room    the file system promises its blocks
    (the trial runs, and may fill the disk)
    fill       the record goes into those blocks, is fsynced, and the file is renamed to record.json

Where a file system knows no such promise, zeros are written instead. One that copies on write or compresses (btrfs,
ZFS) may break it; then the record does not fit, and its trial stays unfinished like any other.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEAST_BYTES = 1 << 20  # of a record: 40,000 steps; `bytes_for` asks for more where records are larger
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Room:
    """A trial's folder, and the space on its disk for a record of so many bytes."""

    folder: Path
    size: int
    reserved: DiskReservation


def bytes_for(largest_record: int) -> int:
    """How much to reserve where the largest record so far has this many bytes: extra steps may double the next."""
    return max(LEAST_BYTES, 2 * largest_record)


@contextlib.contextmanager
def reserved(path: Path, size: int) -> Iterator[DiskReservation]:
    """Reserve space for the file `path`. Raises OSError where there is none; unused space is released."""
    reservation = DiskReservation(path)
    try:
        with opened(reservation.beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as handle:
            _promise(handle, size)
        yield reservation
    finally:
        with contextlib.suppress(OSError):
            reservation.beside.unlink(missing_ok=True)


class DiskReservation:
    """Where `path` is to be written; what holds its blocks until then lies beside it."""

    def __init__(self, path: Path) -> None:
        self.path, self.beside = path, path.with_name(f".{path.name}.room")

    def fill(self, data: bytes) -> None:
        """Write `data` there and give it its name: from here on it is on the disk, whole. Raises OSError."""
        with opened(self.beside, os.O_WRONLY) as handle:  # not made anew: who removed it has removed the results
            written = 0
            while written < len(data):
                written += os.pwrite(handle, data[written:], written)
            os.ftruncate(handle, len(data))
            os.fsync(handle)
        os.replace(self.beside, self.path)
        with opened(self.path.parent, os.O_RDONLY) as folder:
            os.fsync(folder)


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A file descriptor, closed afterwards."""
    handle = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield handle
    finally:
        os.close(handle)


def _promise(handle: int, size: int) -> None:
    try:
        os.posix_fallocate(handle, 0, size)
    except (OSError, AttributeError) as error:  # AttributeError: macOS has none
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        zeros = bytes(min(size, 1 << 20))
        for start in range(0, size, len(zeros)):
            os.pwrite(handle, zeros[: size - start], start)
        os.fsync(handle)  # some only notice here that there is none


def free_bytes(folder: Path) -> int:
    """What this user may still write on the folder's disk."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
