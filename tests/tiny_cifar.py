"""A data set of a few hundred images in the place of CIFAR-10, whose classes are easily told apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scaling_study.datasets import CIFAR10_FOLDER, packed_cifar10

TRAIN, TEST = 400, 61  # 61: no number of workers divides it


@contextlib.contextmanager
def tiny_cifar(folder: Path, train: int = TRAIN) -> Iterator[Path]:
    """A DATA_ROOT whose packed images are these; what lies in the cache is removed again."""
    archive = folder / CIFAR10_FOLDER
    archive.mkdir(parents=True)
    (archive / "data_batch_1").write_bytes(b"its place is taken by the packed file")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA_ROOT", str(folder))
        packed = packed_cifar10()
        packed.parent.mkdir(parents=True, exist_ok=True)
        paths = {packed: train, packed.with_suffix(".test.npy"): TEST}
        for seed, (path, count) in enumerate(paths.items()):
            np.save(path, images(count, seed))
        try:
            yield folder
        finally:
            for path in paths:
                path.unlink()


def images(count: int, seed: int) -> np.ndarray:
    """Rows of a label and 3,072 bytes: noise, brighter in a band of rows that the class chooses."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    pixels = random.integers(0, 120, (count, 3, 32, 32))
    for row, label in enumerate(labels):
        pixels[row, label % 3, 3 * label : 3 * label + 4] += 120
    return np.concatenate([labels[:, None], pixels.reshape(count, -1)], axis=1).astype(np.uint8)
