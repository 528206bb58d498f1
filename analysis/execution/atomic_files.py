"""Files that a reader meets whole or not at all: written beside their place, and renamed into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd


def write_csv(path: Path, frame: pd.DataFrame) -> Path:
    return replaced(path, lambda temporary: frame.to_csv(temporary, index=False))


def write_text(path: Path, text: str) -> Path:
    return replaced(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def replaced(path: Path, write_to: Callable[[Path], object]) -> Path:
    """Write to a temporary file in the same folder, then rename it over `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        write_to(Path(name))
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
