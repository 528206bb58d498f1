"""The errors where results cannot be written: the cause, the space needed, what happens to finished trials.

A sweep stops there. The next trial would fail in the same way, and the one after it, and each would be recorded as a
failure that it is not.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling_study.errors import HostError
from scaling_study.records.reservation import FULL, LEAST_BYTES, free_bytes

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
