"""A folder tree of images, and how its batches are decoded ahead of time.                                [torch]

    train/cat/1.png --PIL: decode, a view, resize--> (side, side, 3) bytes, a row of the batch
    val/cat/7.png     threads, as many as the rank has cores

PIL lets go of the interpreter's lock while it decodes: so threads do, and nothing is pickled from process to process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from scaling_study.datasets import is_image
from scaling_study.workloads.damaged import DamagedFiles
from scaling_study.workloads.read_ahead import Begun, ReadAhead
from scaling_study.workloads.views import WHOLE, View, Views

LAYOUT = "train/<class>/*.png, *.jpg or *.jpeg"


@dataclass(frozen=True)
class Tree:
    """What lies under `train`, or under `val`; sample i is files[i]."""

    folder: Path
    classes: tuple[str, ...]  # sorted: their places are the labels
    files: list[str]  # "cat/1.png", sorted within their class
    labels: torch.Tensor  # (samples,) int64

    def paths(self, ids: Iterable[torch.Tensor | int]) -> list[Path]:
        return [self.folder / self.files[int(id)] for id in ids]


def listed(root: Path) -> Tree:
    """The images under root/train. Raises SystemExit for what is no train/<class>/<image> of two classes or more."""
    train = root / "train"
    if not train.is_dir():
        raise SystemExit(f"DATA_PATH={root} has no folder train/: images are expected as {LAYOUT}")
    names = _classes(train)
    if len(names) < 2:
        raise SystemExit(f"{train} has {len(names)} folder(s) of a class, a classifier needs two or more: {LAYOUT}")
    return _of_classes(train, names)


def listed_test(root: Path, train: Tree) -> Tree:
    """The images under root/val, of the classes of `train`. Raises SystemExit where those are others."""
    val = root / "val"
    if not val.is_dir():
        raise SystemExit(f"DATA_PATH={root} has no folder val/: a training is tested on val/<class>/*, as in train/")
    for name in sorted(set(names := _classes(val)) ^ set(train.classes)):
        there, not_there = (val, train.folder) if name in names else (train.folder, val)
        raise SystemExit(f"class {name} is in {there} and not in {not_there}: both need the same folders of classes")
    return _of_classes(val, train.classes)


def _classes(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."))


def _of_classes(folder: Path, names: tuple[str, ...]) -> Tree:
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        images = sorted(filter(is_image, os.listdir(folder / name)))
        if not images:
            raise SystemExit(f"{folder / name} holds no images: {LAYOUT}")
        files += [f"{name}/{image}" for image in images]
        labels += [label] * len(images)
    return Tree(folder, names, files, torch.tensor(labels))


class Decoder:
    """Threads that decode files, as (batch, side, side, 3) uint8 on the host, in `pinned` memory for a GPU."""

    def __init__(self, side: int, threads: int, pinned: bool, damaged: DamagedFiles | None = None) -> None:
        self.side, self.threads, self.pinned = side, threads, pinned
        self.damaged = damaged or DamagedFiles()
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    def begin(self, files: Sequence[Path], views: Sequence[View]) -> Begun:
        samples = torch.empty(len(files), self.side, self.side, 3, dtype=torch.uint8, pin_memory=self.pinned)
        rows = samples.numpy()  # filled by numpy: torch would start threads of its own in each of ours

        def fill(row: int, file: Path, view: View) -> None:
            try:
                rows[row] = decoded(file, self.side, view)
            except SystemExit as why:
                self.damaged.meet(file, str(why))
                rows[row] = 0

        jobs = enumerate(zip(files, views, strict=True))
        return Begun(samples, [self.pool.submit(fill, row, file, view) for row, (file, view) in jobs])


def decoding(tree: Tree, order: Iterator[torch.Tensor], decoder: Decoder, views: Views) -> ReadAhead:
    """`order`, whose batches are taken as `decoder` makes them."""
    return ReadAhead(order, lambda ids: decoder.begin(tree.paths(ids), views(ids)))


def decoded(file: Path, side: int, view: View = WHOLE) -> np.ndarray:
    """(side, side, 3) uint8, as PIL decodes and resizes what is seen of it. Raises SystemExit that names a damaged
    file."""
    image = opened(file)
    seen = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, view.box(*image.size)))
    return seen[:, ::-1] if view.mirrored else seen


def opened(file: Path) -> Image.Image:
    """In RGB, decoded whole. Raises SystemExit that names a damaged file."""
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except Exception as error:  # PIL raises whatever its parsers of a damaged file stumble over
        why = "not an image" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
        raise SystemExit(
            f"{file} cannot be decoded ({why}): replace it, or take it out of the tree, or have black images in the "
            "places of damaged ones (damaged_images: replace)"
        ) from error
