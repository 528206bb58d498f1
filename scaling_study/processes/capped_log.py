"""A log that cannot fill the disk: the first and the last of what a trial printed, and how much lies between.

    processes --pipe--> a thread here --> | first 4 MiB, as it comes | "... 3.2 GB left out ..." | last 4 MiB |

The error that ends a trial is logged last, its setup first. The pipe is always read, also when nothing more can be
written: a process that waits for its log would be a process that hangs.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from pathlib import Path
from typing import IO

FIRST_BYTES = LAST_BYTES = 4 * 2**20
PIECE_BYTES = 2**16  # what a pipe holds


class CappedLog:
    """Open while a command runs; hand it to Popen as stdout and stderr. Appends to what the file already holds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> CappedLog:
        self._file: IO[bytes] = self.path.open("ab", buffering=0)
        self._read, self._write = os.pipe()
        self._room = max(0, FIRST_BYTES - self._file.tell())
        self._last: collections.deque[bytes] = collections.deque()
        self._kept = self._left_out = 0  # bytes
        self._thread = threading.Thread(target=self._pump, name="log", daemon=True)
        self._thread.start()
        return self

    def fileno(self) -> int:
        """The end to write to."""
        return self._write

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        self._thread.join(timeout=1.0)  # at once, unless a process outside the trial holds the other end
        with contextlib.suppress(OSError):
            last = b"".join(self._last)
            if left_out := self._left_out + max(0, len(last) - LAST_BYTES):
                self._file.write(f"\n... {left_out:,} bytes left out here ...\n".encode())
            self._file.write(last[-LAST_BYTES:])
        self._file.close()

    def _pump(self) -> None:
        with open(self._read, "rb", buffering=0) as pipe:
            while piece := pipe.read(PIECE_BYTES):
                written = self._first(piece[: self._room])
                if rest := piece[written:]:
                    self._keep(rest)

    def _first(self, piece: bytes) -> int:
        """How many bytes of it the file took: all, but on a full disk or a file closed meanwhile."""
        written = 0
        with contextlib.suppress(OSError, ValueError):
            written = self._file.write(piece) if piece else 0
        self._room = self._room - written if written == len(piece) else 0
        return written

    def _keep(self, piece: bytes) -> None:
        self._last.append(piece)
        self._kept += len(piece)
        while self._kept - len(self._last[0]) >= LAST_BYTES:
            gone = len(self._last.popleft())
            self._kept -= gone
            self._left_out += gone
