"""Images for classifiers of any size: CIFAR-10 in memory, a folder tree, or synthetic ones.                 [torch]

    data: images    DATA_PATH/train/<class>/*.png, decoded while the last batch is trained on: timed, all of train/ as
                    it is; trained, train/ --stratified--> train, validation, and val/ is the published test set
    data: cifar10   from memory; for iFormer 32 -> 128 -> side pixels on the device, as the published files had 128
    data: auto      the tree if DATA_PATH names one, else CIFAR-10, else synthetic, which the record states

`python -m scaling_study.workloads.images --cifar10-tree FOLDER` writes CIFAR-10 as a tree, to measure its reading.
"""

from __future__ import annotations

import argparse
import os
import unicodedata
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch.nn import functional as F

from scaling_study.datasets import NO_TREE, NoData, is_image
from scaling_study.machine import usable_cores
from scaling_study.models import CLASSES
from scaling_study.ranks import Ranks
from scaling_study.settings import data_path
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, inputs
from scaling_study.workloads.feed import Batch, Data, Feed, Order, found, random_batches, sent, to_train_on
from scaling_study.workloads.held_out import (
    counted_by_one,
    file_digests,
    held_out_images,
    in_both,
    refuse_other_data,
    row_digests,
    stratified,
    validation_share,
)
from scaling_study.workloads.inputs import ImageDecoder
from scaling_study.workloads.views import MIDDLE, Reading, Samples, augmented
from scaling_study.workloads.workload import memory_layout

Images = tuple[torch.Tensor, torch.Tensor]  # (n, 3, side, side) uint8, (n,) int64 labels
Shaped = Callable[[Batch], Batch]  # a batch -> the same as the model wants it
TREE_SIDE = 224  # pixels, of images of a tree that ResNets see; a parity gate's are as small as CIFAR-10's
PUBLISHED_SIDE = 128  # pixels, of the published CIFAR-10 tree
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_EACH = cifar10.SAMPLES // cifar10.CLASSES


def prepare() -> None:
    """Look whether there is a tree, and whether it is one. Raises NoData, SystemExit."""
    if (folder := data_path()) is None:
        raise NoData(NO_TREE)
    listed(folder)


def tree_data(trial: Trial, ranks: Ranks, shaped: Shaped) -> Data:
    """A tree of images, each batch shaped for the model. Raises SystemExit for a folder that is none."""
    side = trial.image_size or (cifar10.SIDE if trial.find == "parity" else TREE_SIDE)
    read = of_trained_tree if trial.trained else of_tree
    return shaped_data(read(root(ranks), trial, ranks, side), shaped)


def image_data(trial: Trial, ranks: Ranks, shaped: Shaped) -> Data:
    """CIFAR-10, each batch shaped for the model. `auto` falls back to synthetic data by name, never silently."""
    if trial.trained:
        train, test = to_train_on(trial, lambda: (cifar10.images_and_labels(), cifar10.images_and_labels(train=False)))
        return shaped_data(trained_images(train, test, cifar10.normalising(ranks.device), trial, ranks), shaped)
    real, source = found(trial, "cifar10", cifar10.images_and_labels, "CIFAR-10 not found")
    return shaped_data(timed_images(real, source, trial, ranks, trial.image_size or cifar10.SIDE), shaped)


def enlarged_data(trial: Trial, ranks: Ranks, side: int) -> Data:
    """Batches as published with iFormer: a tree, or CIFAR-10 enlarged to `side`. `auto` falls back by name, never
    silently. Raises SystemExit."""
    if trial.data == "images" or (trial.data == "auto" and data_path()):
        return of_tree(root(ranks), trial, ranks, side)
    real, source = found(trial, "cifar10", cifar10.images_and_labels, f"{NO_TREE}, and CIFAR-10 not found")
    data = timed_images(real, source, trial, ranks, side, lambda pixels: enlarged(pixels, side))
    library = inputs.library(trial)
    by = f"{side} pixels by {library}" if library else f"{PUBLISHED_SIDE} and then {side} pixels in memory"
    note = f"CIFAR-10 enlarged to {by}: no file is read and none decoded"
    return replace(data, notes=[note]) if real else data


def timed_images(
    real: Images | None,
    source: str,
    trial: Trial,
    ranks: Ranks,
    side: int,
    resized: Callable[[torch.Tensor], torch.Tensor] = lambda pixels: pixels,
) -> Data:
    """All of CIFAR-10's training images, or random ones in their place, by the library that the trial names.

    `side`: of images that a library makes, and of random ones; `resized`: bytes of real ones, as they are in memory.
    """
    order = Order(cifar10.SAMPLES, trial, ranks)
    if library := inputs.library(trial):
        samples = Samples.in_memory(*(real or synthetic_samples(trial.seed, trial.classes or CLASSES)))
        feed = inputs.feed(library, samples, order, order.steps, Reading.of(trial, ranks, side))
    elif real:
        feed = Feed(order, cifar10.fetching(*real, ranks.device, resized))
    else:
        feed = Feed(order, synthetic(trial, ranks, side))
    return Data(feed, source, order.steps, classes=trial.classes or CLASSES)


def enlarged(images: torch.Tensor, side: int) -> torch.Tensor:
    """(b, 3, 32, 32) uint8 -> (b, 3, side, side) float, whole numbers: the published files' pixels, resized."""
    pixels = images.float()
    for size in (PUBLISHED_SIDE, side):  # antialias: as PIL makes images smaller
        pixels = F.interpolate(pixels, size=(size, size), mode="bilinear", antialias=True).round()
    return pixels


def shaped_data(data: Data, shaped: Shaped) -> Data:
    """`data` with each batch shaped for the model; its feed is changed in place."""
    fetch, held_out = data.feed.fetch, data.held_out
    data.feed.fetch = lambda ids: shaped(fetch(ids))
    if held_out is None:
        return data
    of_split = held_out.fetch
    return replace(data, held_out=replace(held_out, fetch=lambda split, places: shaped(of_split(split, places))))


def laid_out(batch: Batch, side: int | None, layout: torch.memory_format, dtype: torch.dtype) -> Batch:
    """A batch of images of any size as a model is to see them; `side` in pixels, None: as they are."""
    images, labels = batch
    if side and images.shape[-1] != side:
        images = F.interpolate(images, size=(side, side), mode="bilinear", antialias=False)
    return images.to(dtype=dtype, memory_format=layout), labels


def synthetic(trial: Trial, ranks: Ranks, side: int) -> Callable[[torch.Tensor], Batch]:
    """Seeded random images of the data's shape: normal numbers, as normalised pixels are.

    Those of several resident batches are laid out in memory as the model takes them: none is copied in a step.
    """
    layout = memory_layout(trial) if trial.resident_batches else torch.contiguous_format

    def drawn(seed: int, samples: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(samples, 3, side, side, generator=generator).to(ranks.device, memory_format=layout)
        return images, torch.randint(trial.classes or CLASSES, (samples,), generator=generator).to(ranks.device)

    return random_batches(trial, ranks, drawn)


def synthetic_samples(seed: int, classes: int) -> Images:
    """Seeded random bytes in the place of CIFAR-10's, each image its own: for a library that is to read them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (cifar10.SAMPLES, 3, cifar10.SIDE, cifar10.SIDE)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    return images, torch.randint(classes, (cifar10.SAMPLES,), generator=generator)


def trained_images(
    train: Images, test: Images, normalised: Callable[[torch.Tensor], torch.Tensor], trial: Trial, ranks: Ranks
) -> Data:
    """Batches of the training split, augmented, and what is held out. `normalised`: images (b, 3, side, side) uint8 ->
    what the model is given."""
    ids, validation = stratified(train[1], validation_share(trial))
    order, kind, classes = Order(ids, trial, ranks), trial.train_augmentation or "none", len(train[1].unique())
    published, tested = row_digests(train[0]), row_digests(test[0])
    shared = in_both({"train": published[ids], "validation": published[validation], "test": tested})
    by_library = None
    if library := inputs.library(trial):
        reading = Reading.of(trial, ranks, trial.image_size or train[0].shape[-1])
        by_library = inputs.feed(library, Samples.in_memory(*train), order, order.steps, reading)
    if ranks.device.type == "cuda":  # all of them once, and no copy in the step
        train, test = ((images.to(ranks.device), labels.to(ranks.device)) for images, labels in (train, test))

    def fetch(chosen: torch.Tensor) -> Batch:
        there = sent(chosen, ranks.device)
        return normalised(augmented(kind, train[0][there], trial.seed, order.epoch, chosen)), train[1][there]

    def of_split(split: str, places: torch.Tensor) -> Batch:
        (images, labels), at = (train, validation[places]) if split == "validation" else (test, places)
        there = sent(at, ranks.device)
        return normalised(images[there]), labels[there]

    sizes = {"train": len(ids), "validation": len(validation), "test": len(test[1])}
    held_out = held_out_images(sizes, of_split, classes, shared, trial, ranks)
    return Data(by_library or Feed(order, fetch), "cifar10", order.steps, held_out)


LAYOUT = "train/<class>/*.png, *.jpg or *.jpeg"


@dataclass(frozen=True)
class Tree(Samples):
    """The images under `train`, or under `val`; files are "cat/1.png", sorted within their class."""

    classes: tuple[str, ...] = ()  # sorted: their places are the labels

    def paths(self, ids: Iterable[torch.Tensor | int]) -> list[Path]:
        return [self.file(int(id)) for id in ids]


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
        alike = [each for each in (*names, *train.classes) if each != name and _letters(each) == _letters(name)]
        if alike:
            raise SystemExit(f"{val} and {train.folder} write one class as {name!a} and {alike[0]!a}: rename one")
        there, not_there = (val, train.folder) if name in names else (train.folder, val)
        raise SystemExit(f"class {name} is in {there} and not in {not_there}: both need the same folders of classes")
    return _of_classes(val, train.classes)


def _classes(folder: Path) -> tuple[str, ...]:
    """Raises SystemExit for two folders that differ only in how Unicode writes the same letters."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    written: dict[str, str] = {}
    for name in names:
        if (other := written.setdefault(_letters(name), name)) != name:
            raise SystemExit(f"{folder} has two folders of one class, {other!a} and {name!a}: merge them")
    return tuple(names)


def _letters(name: str) -> str:
    """A name in the form that is the same for all ways in which Unicode writes its letters: macOS has another one."""
    return unicodedata.normalize("NFC", name)


def _of_classes(folder: Path, names: tuple[str, ...]) -> Tree:
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        images = sorted(filter(is_image, os.listdir(folder / name)))
        if not images:
            raise SystemExit(f"{folder / name} holds no images: {LAYOUT}")
        files += [f"{name}/{image}" for image in images]
        labels += [label] * len(images)
    return Tree(torch.tensor(labels), folder=folder, files=files, classes=names)


@dataclass(frozen=True)
class TreeSplits:
    """Files that are trained on, and files that judge: ids of `train`, and the test's own tree."""

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


def splits(train: Tree, trial: Trial) -> TreeSplits:
    """The splits of a training. Raises SystemExit where the tree has nothing to test on, or another's classes."""
    test = listed_test(train.folder.parent, train)
    return TreeSplits(train, test, *stratified(train.labels, validation_share(trial)))


def of_tree(tree: Tree, trial: Trial, ranks: Ranks, side: int) -> Data:
    """Batches of all files, whole: images (batch, 3, side, side) float32 and labels (batch,) int64 on the device."""
    order = Order(len(tree.files), trial, ranks)
    feed, note = feed_of(tree, order, Reading.of(trial, ranks, side), trial)
    return Data(feed, "images", order.steps, classes=len(tree.classes), notes=[note])


def of_trained_tree(tree: Tree, trial: Trial, ranks: Ranks, side: int) -> Data:
    """Batches of the training split, augmented, and what is held out. Raises SystemExit for a tree without a test."""
    parts, reading = splits(tree, trial), Reading.of(trial, ranks, side)
    order, decoder = Order(parts.ids, trial, ranks), ImageDecoder(reading)
    normalised = cifar10.normalising(ranks.device)

    def of_split(split: str, places: torch.Tensor) -> Batch:
        of, ids = parts.at(split, places)
        pixels = sent(decoder.begin(of.paths(ids), [MIDDLE] * len(ids)).whole(), ranks.device)
        return normalised(pixels.permute(0, 3, 1, 2)), sent(of.labels[ids], ranks.device)

    shared = counted_by_one(ranks, parts.in_both)
    held_out = held_out_images(parts.sizes, of_split, len(tree.classes), shared, trial, ranks)
    feed, note = feed_of(tree, order, reading, trial)
    tested = f"tested on {len(parts.test.files):,} images of {parts.test.folder.name}/"
    return Data(feed, "images", order.steps, held_out, len(tree.classes), [note, tested])


def feed_of(tree: Tree, order: Order, reading: Reading, trial: Trial) -> tuple[Feed, str]:
    """(batches of the files that `order` names, by the library that the trial names; a note)."""
    library = inputs.library(trial)
    by = "" if library else f", decoded by {reading.cores} thread(s) of each rank"
    feed = inputs.feed(library, tree, order, order.steps, reading)
    return feed, f"{len(tree.files):,} images of {len(tree.classes)} classes{by}"


def write_cifar10(folder: Path, each: int) -> None:
    """Write folder/train/<class>/<number>.png, 128 pixels wide, of the first `each` images of each class."""
    train, half = folder / "train", folder / f".train.{os.getpid()}.tmp"
    if train.exists():
        raise SystemExit(f"{train} is there already: choose another folder")
    try:
        images, labels = cifar10.images_and_labels()
    except NoData as error:
        raise SystemExit(str(error)) from error
    rows = images.permute(0, 2, 3, 1).numpy()
    chosen = [(name, int(i)) for label, name in enumerate(CIFAR10_CLASSES) for i in (labels == label).nonzero()[:each]]

    def write(name: str, number: int) -> None:
        image = Image.fromarray(rows[number]).resize((PUBLISHED_SIDE, PUBLISHED_SIDE), Image.Resampling.BILINEAR)
        image.save(half / name / f"{number:05}.png")

    for name in CIFAR10_CLASSES:
        (half / name).mkdir(parents=True)
    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(write, *zip(*chosen, strict=True)))
    half.rename(train)  # whole, or not there at all
    print(f"{len(chosen):,} images of {len(CIFAR10_CLASSES)} classes: DATA_PATH={folder}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scaling_study.workloads.images", description="Write CIFAR-10's training images as PNG files."
    )
    parser.add_argument("--cifar10-tree", type=Path, required=True, metavar="FOLDER", help="will hold train/")
    parser.add_argument("--images", type=int, default=CIFAR10_EACH, metavar="N", help="of each class (default: all)")
    asked = parser.parse_args()
    if not 1 <= asked.images <= CIFAR10_EACH:
        parser.error(f"--images {asked.images}: CIFAR-10 has 1 to {CIFAR10_EACH:,} training images of each class")
    write_cifar10(asked.cifar10_tree, asked.images)


if __name__ == "__main__":
    main()
