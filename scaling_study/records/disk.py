"""Disk space for a record, and the errors where results cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling_study.errors import HostError

# Disk space for a record, reserved before its trial starts: a disk that fills up costs at most the running trial.
#
#     reserve    .record.json.room    the file system promises its blocks
#     (the trial runs, and may fill the disk)
#     fill       the record goes into those blocks, is fsynced, and the file is renamed to record.json
#
# Where a file system knows no such promise, zeros are written instead. One that copies on write or compresses (btrfs,
# ZFS) may break it; then the record does not fit, and its trial stays unfinished like any other.

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


# The errors where results cannot be written: the cause, the space needed, what happens to finished trials.
#
# A sweep stops there. The next trial would fail in the same way, and the one after it, and each would be recorded as a
# failure that it is not.

FULL_MESSAGES = ("No space left on device", "Disk quota exceeded")  # Linux's words, in a rank's message
OF_FOLDERS = (
    errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOTCONN,
)  # fmt: skip


def first_write_error(results: Path, error: OSError) -> HostError:
    """The error where not even the first file could be written."""
    if error.errno in FULL:
        return disk_full_error(results, LEAST_BYTES)
    return HostError(f"{results}: cannot write results there: {error.strerror}; choose another with --results")


def write_error(results: Path, size: int, error: OSError) -> HostError:
    """The error of a folder that was writable before; `size` bytes were needed. Raises an unrelated error unchanged."""
    goes_on = "finished trials are kept; the same command resumes once it is back"
    if error.errno in FULL:
        return disk_full_error(results, size)
    if not (results / "study.json").exists():
        return HostError(f"{results} is gone ({error.strerror}): it was moved or removed; {goes_on}")
    if error.errno in OF_FOLDERS:
        return HostError(f"{results} can no longer be written to ({error.strerror}); {goes_on}")
    raise error


def raise_if_unwritable(results: Path, size: int, errors: Sequence[Mapping[str, Any]]) -> None:
    """Raises HostError where a trial's failure is not its own.

    So it is where `errors` of its ranks say that a disk is full, where another record of `size` bytes would not fit,
    and where the folder is gone.
    """
    for error in errors:
        if any(words in error["message"] for words in FULL_MESSAGES):
            raise disk_full_error(results, size, f"rank {error['rank']}: {error['message'].strip()}")
    if not (results / "study.json").exists():
        raise write_error(results, size, FileNotFoundError(errno.ENOENT, "No such file or directory"))
    if free_bytes(results) < size:
        raise disk_full_error(results, size)


def disk_full_error(results: Path, size: int, why: str = "") -> HostError:
    """The error of a full disk: no space for a record of `size` bytes, or as `why` describes."""
    with contextlib.suppress(OSError):
        why = why or f"{_shown(free_bytes(results))} free, {_shown(size)} needed for the next record"
    kept = "finished trials are kept: free disk space, then the same command resumes"
    return HostError(f"{results}: no space left on the disk{f' ({why})' if why else ''}; {kept}")


def _shown(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size < 10 << 30 else f"{size / 2**30:.0f} GiB"
