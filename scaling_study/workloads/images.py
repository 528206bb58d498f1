"""Images of any size and number of classes: a folder tree, or CIFAR-10 as published with iFormer.         [torch]

    data: images    DATA_PATH/train/<class>/*.png, decoded while the last batch is trained on (image_tree.py)
    data: cifar10   from memory, 32 -> 128 -> side pixels, on the device: no file is read and none decoded
    data: auto      the tree if DATA_PATH names one, else CIFAR-10, else synthetic, which the record states

Published were CIFAR-10's images as PNG files of 128 pixels. Who wants to measure reading them writes them, and names
the folder in DATA_PATH: `python -m scaling_study.workloads.images --cifar10-tree FOLDER`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch.nn import functional as F

from scaling_study.datasets import NO_TREE, NoData
from scaling_study.machine import usable_cores
from scaling_study.ranks import Ranks
from scaling_study.settings import data_path
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, inputs
from scaling_study.workloads.feed import Batch, Feed, batches_of_indices, sent, steps_per_epoch
from scaling_study.workloads.resnet_cifar10 import synthetic, synthetic_samples
from scaling_study.workloads.tree import Reading, Samples, listed
from scaling_study.workloads.tree_data import Source, of_tree, root

TREE_SIDE = 128  # of the published CIFAR-10 tree
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_EACH = cifar10.SAMPLES // cifar10.CLASSES


def prepare() -> None:
    """Look whether there is a tree, and whether it is one. Raises NoData, SystemExit."""
    if (folder := data_path()) is None:
        raise NoData(NO_TREE)
    listed(folder)


def source(trial: Trial, ranks: Ranks, side: int) -> Source:
    """What the trial's `data` means here. `auto` falls back by name, never silently. Raises SystemExit."""
    why = "asked for"
    if trial.data == "images" or (trial.data == "auto" and data_path()):
        return of_tree(root(ranks), trial, ranks, side)
    if trial.data != "synthetic":
        try:
            return of_cifar10(trial, ranks, side)
        except NoData as error:
            if trial.data == "cifar10":
                raise SystemExit(f"--data cifar10: {error}") from error
            why = f"{NO_TREE}, and CIFAR-10 not found"
    if library := inputs.library(trial):
        return Source(_by(library, synthetic_samples(trial.seed), trial, ranks, side), f"synthetic ({why})")
    drawn = synthetic(replace(trial, image_size=side), ranks)
    return Source(Feed(_order(cifar10.SAMPLES, trial, ranks), drawn), f"synthetic ({why})")


def of_cifar10(trial: Trial, ranks: Ranks, side: int) -> Source:
    """CIFAR-10 from memory, enlarged as published. Raises NoData, SystemExit."""
    if library := inputs.library(trial):
        note = f"CIFAR-10 enlarged to {side} pixels by {library}: no file is read and none decoded"
        return Source(_by(library, cifar10.images_and_labels(), trial, ranks, side), "cifar10", notes=[note])
    images, labels = (tensor.to(ranks.device) for tensor in cifar10.images_and_labels())
    normalised = normalising(ranks.device)

    def fetch(ids: torch.Tensor) -> Batch:
        chosen = sent(ids, ranks.device)
        return normalised(enlarged(images[chosen], side)), labels[chosen]

    note = f"CIFAR-10 enlarged to {TREE_SIDE} and then {side} pixels in memory: no file is read and none decoded"
    return Source(Feed(_order(cifar10.SAMPLES, trial, ranks), fetch), "cifar10", notes=[note])


def enlarged(images: torch.Tensor, side: int) -> torch.Tensor:
    """(b, 3, 32, 32) uint8 -> (b, 3, side, side) float, whole numbers: the published files' pixels, resized."""
    pixels = images.float()
    for size in (TREE_SIDE, side):  # antialias: as PIL makes images smaller
        pixels = F.interpolate(pixels, size=(size, size), mode="bilinear", antialias=True).round()
    return pixels


def normalising(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """(b, 3, side, side) float from 0 to 255 -> the same without ImageNet's mean and deviation, as one multiply-add."""
    mean, std = (torch.tensor(value).view(1, 3, 1, 1) for value in (cifar10.MEAN, cifar10.STD))
    shift, scale = (-mean / std).to(device), (1 / (255 * std)).to(device)
    return lambda pixels: torch.addcmul(shift, pixels, scale)


def _by(library: str, images: tuple[torch.Tensor, torch.Tensor], trial: Trial, ranks: Ranks, side: int) -> Feed:
    samples = Samples.in_memory(*images)
    order = _order(cifar10.SAMPLES, trial, ranks)
    steps = steps_per_epoch(cifar10.SAMPLES, ranks.world_size, trial.batch_per_worker)
    return inputs.feed(library, samples, order, steps, Reading.of(trial, ranks, side))


def _order(samples: int, trial: Trial, ranks: Ranks) -> Iterator[torch.Tensor]:
    return batches_of_indices(samples, trial.seed, ranks.rank, ranks.world_size, trial.batch_per_worker)


# --- the published files ---


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
        image = Image.fromarray(rows[number]).resize((TREE_SIDE, TREE_SIDE), Image.Resampling.BILINEAR)
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
