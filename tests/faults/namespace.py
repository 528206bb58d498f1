"""A mount namespace of its own: a place where a disk is full, /dev/shm has no room, or a host has another name.

    Namespace ---- `sleep` holds the namespace open ---- nsenter starts sweeps in it
                          |
              /proc/<pid>/root: its files, seen from outside

Nothing that is mounted there is seen by the rest of the machine, and all of it is gone with its last process. Every
sweep of the suite runs in one with a /dev/shm of its own, or segments of others would be taken for its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
import time
from pathlib import Path

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")  # another user, with no rights
UNSHARE = ["unshare", "--mount", "--propagation", "private"]


def why_not() -> str:
    """Why there can be no Namespace here; empty: there can."""
    if not Path("/proc/self/ns/mnt").exists():
        return "no mount namespaces (not Linux)"
    try:
        tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"unshare: {error.strerror}"
    return "" if tried.returncode == 0 else f"may not mount: {tried.stderr.strip().splitlines()[-1]}"


class Namespace:
    """Open while used; `mount` changes what is seen inside."""

    def __enter__(self) -> Namespace:
        self._holder = subprocess.Popen([*UNSHARE, "sleep", "infinity"], start_new_session=True)
        ours, deadline = os.readlink("/proc/self/ns/mnt"), time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{self._holder.pid}/ns/mnt") != ours and b"sleep" in self._command():
                    return self
            time.sleep(0.01)
        raise RuntimeError("no mount namespace within 10 s")

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.wait()

    def _command(self) -> bytes:
        return Path(f"/proc/{self._holder.pid}/cmdline").read_bytes().split(b"\0")[0]

    def into(self, folder: Path) -> list[str]:
        """What stands before a command that is to run in here, in `folder`."""
        return ["nsenter", f"--target={self._holder.pid}", "--mount", f"--wdns={folder}"]

    def do(self, *command: str) -> None:
        """Run a command in here that must succeed."""
        subprocess.run([*self.into(Path("/")), *command], check=True, capture_output=True, text=True)

    def mount(self, *arguments: str) -> None:
        self.do("mount", *arguments)

    def memory_disk(self, place: Path, size: str) -> None:
        """A file system of this size at `place`."""
        self.mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))

    def open_way(self, path: Path) -> None:
        """Let every user pass to `path`: a folder above it that is closed to others is replaced by one that is not.

        Some interpreters live in root's own home.
        """
        closed = next((p for p in reversed(path.parents) if not p.stat().st_mode & 0o001), None)
        if closed:
            below = closed / path.relative_to(closed).parts[0]
            aside = Path(tempfile.mkdtemp())
            self.mount("--bind", str(below), str(aside))
            self.mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(closed))
            self.do("mkdir", str(below))
            self.mount("--bind", str(aside), str(below))
            self.do("umount", str(aside))
            aside.rmdir()

    def seen(self, path: Path) -> Path:
        """The path by which the outside sees what is at `path` in here."""
        return Path(f"/proc/{self._holder.pid}/root") / path.relative_to("/")


def own(*paths: Path) -> None:
    """Give these to that other user."""
    for path in paths:
        os.chown(path, NOBODY, NOBODY)


def fill(folder: Path) -> Path:
    """Write until there is no room left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as stream:
        for size in (1 << 20, 4096):
            try:
                while True:
                    stream.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return ballast
