"""Horovod's source: the archive from the registry, verified, with our patch applied."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from environment.progress import SetupFailed, run

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCH = Path(__file__).with_name(f"horovod-{VERSION}.patch")


def download(python: Path, sources: Path, log: Path, environ: Mapping[str, str]) -> Path:
    """Fetch the source archive with the machine's own pip settings and verify it."""
    archive = sources / f"horovod-{VERSION}.tar.gz"
    if not archive.exists():
        # pip reads the archive's metadata, for which Horovod's setup.py wants the build requirements at hand.
        pip = [python, "-m", "pip", "download", "--no-binary", "horovod", "--no-deps", "--no-build-isolation"]
        run([*pip, f"horovod=={VERSION}", "--dest", sources], log, environ)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        archive.unlink()
        raise SetupFailed(
            f"{archive.name} has SHA-256 {found}, not {SHA256}: it is not the archive that was published."
        )
    return archive


def unpack(archive: Path, scratch: Path) -> Path:
    """Unpack the source archive outside of any repository and return its folder."""
    # Python before 3.11.4 has no filters; the archive is verified, so that they are a second lock on the same door.
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(scratch, filter="data")
        else:
            tar.extractall(scratch)
    return scratch / f"horovod-{VERSION}"


def apply(patch: Path, source: Path, log: Path) -> None:
    """Apply the patch, whole or not at all.

    Raises:
        SetupFailed: a hunk does not fit, or the tool claims success and a changed line is not there.
    """
    # Inside a repository `git apply` skips, in silence, every file that the repository does not know.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ = {**inherited, "GIT_CEILING_DIRECTORIES": str(source.parent)}
    tool = ["patch", "--batch", "--fuzz=0", "-p1", "-i"] if shutil.which("patch") else ["git", "apply"]
    run([*tool, patch], log, environ, folder=source)
    for path, line in added_lines(patch.read_text()):
        if line not in (source / path).read_text().splitlines():
            raise SetupFailed(f"{patch.name} did not take: {path} lacks {line.strip()!r}")


def added_lines(patch: str) -> list[tuple[str, str]]:
    """Return (file, line) for every line that a unified diff adds."""
    lines, path = [], ""
    for line in patch.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif line.startswith("+"):
            lines.append((path, line[1:]))
    return lines
