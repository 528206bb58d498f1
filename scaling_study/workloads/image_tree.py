"""A folder tree of images, and how its batches are decoded ahead of time.                                [torch]

    train/cat/1.png --PIL: decode, resize--> (side, side, 3) bytes, a row of the batch
                      threads, as many as the rank has cores

PIL lets go of the interpreter's lock while it decodes: so threads do, and nothing is pickled from process to process.
No crops and no flips: what is measured is loading, and an image is the same numbers in every run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from scaling_study.workloads.read_ahead import Begun, ReadAhead

SUFFIXES = (".png", ".jpg", ".jpeg")  # in any case
LAYOUT = "train/<class>/*.png, *.jpg or *.jpeg"


@dataclass(frozen=True)
class Tree:
    """What lies under `train`; sample i is files[i]."""

    train: Path
    classes: tuple[str, ...]  # sorted: their places are the labels
    files: list[str]  # "cat/1.png", sorted within their class
    labels: torch.Tensor  # (samples,) int64


def listed(root: Path) -> Tree:
    """The images under root/train. Raises SystemExit for what is no train/<class>/<image> of two classes or more."""
    train = root / "train"
    if not train.is_dir():
        raise SystemExit(f"DATA_PATH={root} has no folder train/: images are expected as {LAYOUT}")
    names = sorted(entry.name for entry in os.scandir(train) if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise SystemExit(f"{train} has {len(names)} folder(s) of a class, a classifier needs two or more: {LAYOUT}")
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        images = sorted(filter(_is_image, os.listdir(train / name)))
        if not images:
            raise SystemExit(f"{train / name} holds no images: {LAYOUT}")
        files += [f"{name}/{image}" for image in images]
        labels += [label] * len(images)
    return Tree(train, tuple(names), files, torch.tensor(labels))


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")  # some systems leave ._1.png beside 1.png


def decoding(tree: Tree, order: Iterator[torch.Tensor], side: int, threads: int, pinned: bool) -> ReadAhead:
    """`order`, whose batches are taken as (batch, side, side, 3) uint8 on the host, in `pinned` memory for a GPU."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    def begin(ids: torch.Tensor) -> Begun:
        samples = torch.empty(len(ids), side, side, 3, dtype=torch.uint8, pin_memory=pinned)
        rows = samples.numpy()  # filled by numpy: torch would start threads of its own in each of ours

        def fill(row: int, file: Path) -> None:
            rows[row] = decoded(file, side)

        files = (tree.train / tree.files[int(id)] for id in ids)
        return Begun(samples, [pool.submit(fill, row, file) for row, file in enumerate(files)])

    return ReadAhead(order, begin)


def decoded(file: Path, side: int) -> np.ndarray:
    """(side, side, 3) uint8, as PIL decodes and resizes it. Raises SystemExit that names a damaged file."""
    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))
    except Exception as error:  # PIL raises whatever its parsers of a damaged file stumble over
        why = "not an image" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
        raise SystemExit(f"{file} cannot be decoded ({why}): replace it, or take it out of the tree") from error
