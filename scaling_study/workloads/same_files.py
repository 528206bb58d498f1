"""Which files are the same, byte for byte: two splits may share none (F18, F22).                          [torch]

    sizes  --alike-->  ends  --alike-->  whole files

Of a million photographs hardly one is read whole: a training that begins does not wait for 140 GB.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

END = 4096  # bytes: many JPEGs begin with the same tables, and hardly two end alike


def digests(files: Sequence[Path]) -> torch.Tensor:
    """(n,) int64, equal where files are."""
    keys: list[tuple[object, ...]] = [()] * len(files)
    for look in (_size, _end, _whole):
        alike = Counter(keys)
        keys = [(*key, look(file)) if alike[key] > 1 else key for key, file in zip(keys, files, strict=True)]
    number: dict[tuple[object, ...], int] = {}
    return torch.tensor([number.setdefault(key, len(number)) for key in keys], dtype=torch.int64)


def _size(file: Path) -> int:
    return file.stat().st_size


def _end(file: Path) -> bytes:
    with file.open("rb") as stream:
        stream.seek(-min(END, _size(file)), os.SEEK_END)
        return hashlib.sha256(stream.read()).digest()


def _whole(file: Path) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
