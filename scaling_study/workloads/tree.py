"""A folder tree of images, decoded ahead of time: a rank's batches, timed or trained on to a result.          [torch]

timed      train/ whole, as it is: what is measured is loading, and an image is the same numbers in every run
trained    train/ --stratified--> train, validation        val/: the published test set
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from scaling_study.datasets import NO_TREE, is_image
from scaling_study.ranks import Ranks
from scaling_study.settings import data_path
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, inputs
from scaling_study.workloads.feed import Batch, Data, Feed, order_of, sent, steps_of
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
from scaling_study.workloads.inputs import Decoder
from scaling_study.workloads.views import MIDDLE, Reading, Samples

LAYOUT = "train/<class>/*.png, *.jpg or *.jpeg"


@dataclass(frozen=True)
class Tree:
    """The images under `train`, or under `val`; sample i is files[i]."""

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
    order, steps = order_of(len(tree.files), trial, ranks), steps_of(len(tree.files), trial, ranks)
    feed, note = feed_of(tree, order, steps, Reading.of(trial, ranks, side), trial)
    return Data(feed, "images", steps, classes=len(tree.classes), notes=[note])


def of_trained_tree(tree: Tree, trial: Trial, ranks: Ranks, side: int) -> Data:
    """Batches of the training split, augmented, and what is held out. Raises SystemExit for a tree without a test."""
    parts, reading = splits(tree, trial), Reading.of(trial, ranks, side)
    order, decoder, normalised = Order(parts.ids, trial, ranks), Decoder(reading), cifar10.normalising(ranks.device)

    def of_split(split: str, places: torch.Tensor) -> Batch:
        of, ids = parts.at(split, places)
        pixels = sent(decoder.begin(of.paths(ids), [MIDDLE] * len(ids)).whole(), ranks.device)
        return normalised(pixels.permute(0, 3, 1, 2)), sent(of.labels[ids], ranks.device)

    shared = counted_by_one(ranks, parts.in_both)
    held_out = held_out_images(parts.sizes, of_split, len(tree.classes), shared, trial, ranks)
    feed, note = feed_of(tree, order, order.steps, reading, trial)
    tested = f"tested on {len(parts.test.files):,} images of {parts.test.folder.name}/"
    return Data(feed, "images", order.steps, held_out, len(tree.classes), [note, tested])


def feed_of(tree: Tree, order: Iterator[torch.Tensor], steps: int, reading: Reading, trial: Trial) -> tuple[Feed, str]:
    """(batches of the files that `order` names, by the library that the trial names; a note)."""
    library, samples = inputs.library(trial), Samples(tree.labels, folder=tree.folder, files=tree.files)
    by = "" if library else f", decoded by {reading.cores} thread(s) of each rank"
    feed = inputs.feed(library, samples, order, steps, reading)
    return feed, f"{len(tree.files):,} images of {len(tree.classes)} classes{by}"
