"""Texts of a few hundred tokens in the place of WikiText-2."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scaling_study import datasets

TOKENS = {"tokens": 205, "validation": 84, "test": 101}  # 84: no number of windows of 8 says them all
FILES = {"tokens": "wiki.train.tokens", "validation": "wiki.valid.tokens", "test": "wiki.test.tokens"}


@contextlib.contextmanager
def tiny_texts(folder: Path) -> Iterator[Path]:
    """A DATA_ROOT whose texts are these, word by word; what lies in the cache is removed again."""
    (folder / datasets.WIKITEXT2_FOLDER).mkdir(parents=True)
    for name in FILES.values():
        (folder / datasets.WIKITEXT2_FOLDER / name).write_bytes(b"its place is taken by the packed file")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA_ROOT", str(folder))
        pack = datasets.packed_wikitext2()
        held_out = datasets.packed_held_out(pack, list(datasets.wikitext2_held_out().values()))
        for seed, (name, count) in enumerate(TOKENS.items()):
            path = (pack if name == "tokens" else held_out) / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, text(count, seed))
        try:
            yield folder
        finally:
            shutil.rmtree(pack)
            shutil.rmtree(held_out)


def text(count: int, seed: int) -> np.ndarray:
    """(count,) uint16 below 100: each is the one before it and 1 or 2."""
    return (np.random.default_rng(seed).integers(1, 3, count).cumsum() % 100).astype(np.uint16)
