"""The output of set-up while it works: one line a step, with its seconds; compilers write to a log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_TELLING = re.compile(r"\b(error|fatal|failed|No space left|Killed|not found)\b", re.IGNORECASE)
# Lines in which pip only says that it is about to say something, or repeats that a command failed.
_EMPTY_WORDS = re.compile(
    r"^\s*(×|╰─>|note:|hint:|error: (subprocess-exited|metadata-generation-failed|failed-wheel)|ERROR: Failed building)"
)


class SetupFailed(Exception):
    """Set-up cannot go on; the message is all that a person has to read."""


@contextmanager
def step(title: str) -> Iterator[None]:
    """Show `title`, on a terminal with the seconds running, and how long it took when it ends."""
    began = time.monotonic()
    ended = threading.Event()

    def seconds() -> str:
        return f"  {title} {'.' * max(3, 60 - len(title))} {time.monotonic() - began:4.0f} s"

    def tick() -> None:
        while not ended.wait(1):
            print(f"\r{seconds()}", end="", flush=True)

    ticker = threading.Thread(target=tick, daemon=True)
    if sys.stdout.isatty():
        ticker.start()
    try:
        yield
    finally:
        ended.set()
        if ticker.is_alive():
            ticker.join()
        print(f"{chr(13) if sys.stdout.isatty() else ''}{seconds()}", flush=True)


def run(command: Sequence[object], log: Path, environ: Mapping[str, str], folder: Path | None = None) -> None:
    """Run one command with everything it prints going to the end of `log`.

    Raises:
        SetupFailed: it returned anything but 0; says the last telling line and where the log is.
    """
    argv = [str(part) for part in command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as output:
        output.write(f"$ {' '.join(argv)}\n")
        output.flush()
        began_at = output.tell()
        status = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=dict(environ), cwd=folder
        ).returncode
    if status:
        with log.open(encoding="utf-8", errors="replace") as written:
            written.seek(began_at)
            said = telling_line(written.read())
        raise SetupFailed(f"{said}\n(the whole log: {os.path.relpath(log)})")


def telling_line(log: str) -> str:
    """Return the last line of a log that says what went wrong, or its last line.

    >>> telling_line("cc -c x.c\\nx.c:3:10: fatal error: mpi.h: No such file\\nerror: metadata-generation-failed")
    'x.c:3:10: fatal error: mpi.h: No such file'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _EMPTY_WORDS.search(line)]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["it printed nothing"])[-1][:500]
