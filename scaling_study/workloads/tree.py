"""A folder tree of images, decoded ahead of time: a rank's batches, timed or trained on to a result.          [torch]

    train/cat/1.png --PIL: decode, a view, resize--> (side, side, 3) bytes, a row of the batch
    val/cat/7.png     threads, as many as the rank has cores

    timed      train/ whole, as it is: what is measured is loading, and an image is the same numbers in every run
    trained    train/ --stratified--> train, validation        val/: the published test set

PIL lets go of the interpreter's lock while it decodes: so threads do, and nothing is pickled from process to process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from scaling_study.datasets import NO_TREE, is_image
from scaling_study.ranks import Ranks
from scaling_study.settings import data_path
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, inputs
from scaling_study.workloads.feed import Batch, Begun, Data, Feed, ReadAhead, order_of, sent, steps_of
from scaling_study.workloads.held_out import (
    Order,
    counted_by_one,
    file_digests,
    held_out_images,
    in_both,
    refuse_other_data,
    stratified,
    validation_share,
)
from scaling_study.workloads.views import (
    MIDDLE,
    WHOLE,
    DamagedFiles,
    Reading,
    Samples,
    View,
    Views,
    augmented_views,
    opened,
    same,
)

LAYOUT = "train/<class>/*.png, *.jpg or *.jpeg"


@dataclass(frozen=True)
class Tree:
    """The images under `train`, or under `val`; sample i is files[i]."""

    folder: Path
    classes: tuple[str, ...]  # sorted: their places are the labels
    files: list[str]  # "cat/1.png", sorted within their class
    labels: torch.Tensor  # (samples,) int64

    @property
    def described(self) -> str:
        return f"{len(self.files):,} images of {len(self.classes)} classes"

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


@dataclass(frozen=True)
class Splits:
    """Which files are trained on and which judge: ids of `train`, and the test's own tree."""

    train: Tree
    test: Tree
    ids: torch.Tensor  # (n,) int64, places in train.files
    validation: torch.Tensor  # (n,) int64, places in train.files, disjoint from ids

    @property
    def sizes(self) -> dict[str, int]:
        return {"train": len(self.ids), "validation": len(self.validation), "test": len(self.test.files)}

    def at(self, split: str, places: torch.Tensor) -> tuple[Tree, torch.Tensor]:
        """(the tree, the ids in it) of places in a split."""
        return (self.test, places) if split == "test" else (self.train, self.validation[places])

    def in_both(self) -> dict[str, int]:
        """Files that two splits share."""
        trees = [tree.paths(range(len(tree.files))) for tree in (self.train, self.test)]
        train, test = file_digests([*trees[0], *trees[1]]).split([len(trees[0]), len(trees[1])])
        return in_both({"train": train[self.ids], "validation": train[self.validation], "test": test})


def root(ranks: Ranks) -> Tree:
    """The tree that is trained on. Called by all ranks. Raises SystemExit where none is named, it is none, or this
    host's is another than that of rank 0."""
    if (folder := data_path()) is None:
        raise SystemExit(f"--data images: {NO_TREE}; set it to a folder that holds {LAYOUT}")
    tree = listed(folder)
    refuse_other_data(tree.folder, "files", "\n".join(tree.files).encode(), ranks)
    return tree


def splits(train: Tree, trial: Trial) -> Splits:
    """The splits of a training. Raises SystemExit where the tree has nothing to test on, or another's classes."""
    test = listed_test(train.folder.parent, train)
    return Splits(train, test, *stratified(train.labels, validation_share(trial)))


def of_tree(tree: Tree, trial: Trial, ranks: Ranks, side: int) -> Data:
    """Batches of all files, whole: images (batch, 3, side, side) float32 and labels (batch,) int64 on the device."""
    order, decoder = order_of(len(tree.files), trial, ranks), decoder_of(trial, ranks, side)
    steps = steps_of(len(tree.files), trial, ranks)
    feed, note = feed_of(tree, order, steps, decoder, same(WHOLE), Reading.of(trial, ranks, side), trial, ranks)
    return Data(feed, "images", steps, classes=len(tree.classes), notes=[note])


def of_trained_tree(tree: Tree, trial: Trial, ranks: Ranks, side: int) -> Data:
    """Batches of the training split, augmented, and what is held out. Raises SystemExit for a tree without a test."""
    parts, decoder = splits(tree, trial), decoder_of(trial, ranks, side)
    order, normalised = Order(parts.ids, trial, ranks), cifar10.normalising(ranks.device)
    views = augmented_views(trial.train_augmentation or "none", trial.seed, lambda: order.epoch)
    reading = replace(Reading.of(trial, ranks, side), damaged=decoder.damaged)

    def of_split(split: str, places: torch.Tensor) -> Batch:
        of, ids = parts.at(split, places)
        pixels = decoder.begin(of.paths(ids), [MIDDLE] * len(ids)).whole()
        return normalised(on_device(pixels, ranks)), sent(of.labels[ids], ranks.device)

    shared = counted_by_one(ranks, parts.in_both)
    held_out = held_out_images(parts.sizes, of_split, len(tree.classes), shared, trial, ranks)
    feed, note = feed_of(tree, order, order.steps, decoder, views, reading, trial, ranks)
    tested = f"tested on {len(parts.test.files):,} images of {parts.test.folder.name}/"
    return Data(feed, "images", order.steps, held_out, len(tree.classes), [note, tested])


def feed_of(
    tree: Tree,
    order: Iterator[torch.Tensor],
    steps: int,
    decoder: Decoder,
    views: Views,
    reading: Reading,
    trial: Trial,
    ranks: Ranks,
) -> tuple[Feed, str]:
    """(batches of the files that `order` names, a note): made by `decoder`, or by the library that the trial names."""
    if library := inputs.library(trial):
        samples = Samples(tree.labels, folder=tree.folder, files=tree.files)
        return inputs.feed(library, samples, order, steps, reading), tree.described
    ahead, normalised = decoding(tree, order, decoder, views), cifar10.normalising(ranks.device)

    def fetch(ids: torch.Tensor) -> Batch:
        return normalised(on_device(ahead.take(ids), ranks)), sent(tree.labels[ids], ranks.device)

    feed = Feed(ahead, fetch)
    feed.notes = decoder.damaged.notes
    return feed, f"{tree.described}, decoded by {decoder.threads} thread(s) of each rank"


def decoder_of(trial: Trial, ranks: Ranks, side: int) -> Decoder:
    threads = len(ranks.cores) or torch.get_num_threads()
    return Decoder(side, threads, ranks.device.type == "cuda", DamagedFiles.of(trial))


def on_device(pixels: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """(b, side, side, 3) on the host -> (b, 3, side, side)."""
    return sent(pixels, ranks.device).permute(0, 3, 1, 2)
