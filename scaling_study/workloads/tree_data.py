"""A rank's batches of a tree of images, timed or trained on to a result.                                   [torch]

    timed      train/ whole, as it is: what is measured is loading, and an image is the same numbers in every run
    trained    train/ --stratified--> train, validation        val/: the published test set

What is seen of an image says views.py: a training by its augmentation, evaluation the middle.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import torch

from scaling_study.datasets import NO_TREE
from scaling_study.ranks import Ranks
from scaling_study.settings import data_path
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10, inputs
from scaling_study.workloads import tree as views
from scaling_study.workloads.feed import (
    Batch,
    Feed,
    HeldOut,
    batches_of_indices,
    digests,
    sent,
    steps_per_epoch,
    stratified,
)
from scaling_study.workloads.trained_images import VALIDATION, Order, classification, in_both, origins, score
from scaling_study.workloads.tree import (
    LAYOUT,
    DamagedFiles,
    Decoder,
    Reading,
    Samples,
    Tree,
    decoding,
    listed,
    listed_test,
)

PAIRS = ("train/validation", "train/test", "validation/test")


@dataclass(frozen=True)
class Source:
    """A rank's batches on its device: images (batch, 3, side, side) float32, and labels (batch,) int64."""

    feed: Feed
    name: str  # as recorded: "images", "cifar10", "synthetic (why)"
    samples: int = cifar10.SAMPLES  # that are trained on
    classes: int = cifar10.CLASSES
    notes: list[str] = field(default_factory=list)
    held_out: HeldOut | None = None


@dataclass(frozen=True)
class Splits:
    """Which files are trained on and which judge: ids of `train`, and the test's own tree."""

    train: Tree
    test: Tree
    ids: torch.Tensor  # (n,) int64, places in train.files
    validation: torch.Tensor  # likewise; disjoint from ids

    @property
    def sizes(self) -> dict[str, int]:
        return {"train": len(self.ids), "validation": len(self.validation), "test": len(self.test.files)}

    def at(self, split: str, places: torch.Tensor) -> tuple[Tree, torch.Tensor]:
        """(the tree, the ids in it) of places in a split."""
        return (self.test, places) if split == "test" else (self.train, self.validation[places])

    def in_both(self, ranks: Ranks) -> dict[str, int]:
        """Files that two splits share. Called by all ranks; rank 0 alone reads."""
        counted: dict[str, int] = {}
        if ranks.rank == 0:
            trees = [tree.paths(range(len(tree.files))) for tree in (self.train, self.test)]
            train, test = digests([*trees[0], *trees[1]]).split([len(trees[0]), len(trees[1])])
            counted = in_both({"train": train[self.ids], "validation": train[self.validation], "test": test})
        return {pair: int(ranks.agree(counted.get(pair, 0))) for pair in PAIRS}


def root(ranks: Ranks) -> Tree:
    """The tree that is trained on. Called by all ranks. Raises SystemExit where none is named, it is none, or this
    host's is another than that of rank 0."""
    if (folder := data_path()) is None:
        raise SystemExit(f"--data images: {NO_TREE}; set it to a folder that holds {LAYOUT}")
    tree = listed(folder)
    names = int(hashlib.sha256("\n".join(tree.files).encode()).hexdigest()[:12], 16)  # exact as fp64
    if ranks.agree(names) != names:
        raise SystemExit(
            f"{tree.folder} of rank {ranks.rank} holds other files than that of rank 0: copy one of the two"
        )
    return tree


def splits(train: Tree, trial: Trial) -> Splits:
    """Those of a training. Raises SystemExit where the tree has nothing to test on, or another's classes."""
    share = VALIDATION if trial.train_validation is None else trial.train_validation
    return Splits(train, listed_test(train.folder.parent, train), *stratified(train.labels, share))


def of_tree(tree: Tree, trial: Trial, ranks: Ranks, side: int) -> Source:
    """Batches of files, decoded ahead of time, in the order in which they are read."""
    places = batches_of_indices(len(tree.files), trial.seed, ranks.rank, ranks.world_size, trial.batch_per_worker)
    if library := inputs.library(trial):
        steps = steps_per_epoch(len(tree.files), ranks.world_size, trial.batch_per_worker)
        feed = inputs.feed(library, samples_of(tree), places, steps, Reading.of(trial, ranks, side))
        return Source(feed, "images", len(tree.files), len(tree.classes), [described(tree)])
    decoder, normalised = decoder_of(trial, ranks, side), cifar10.normalising(ranks.device)
    order = decoding(tree, places, decoder, views.same(views.WHOLE))

    def fetch(ids: torch.Tensor) -> Batch:
        return normalised(on_device(order.take(ids), ranks)), sent(tree.labels[ids], ranks.device)

    feed = Feed(order, fetch)
    feed.notes = decoder.damaged.notes
    return Source(feed, "images", len(tree.files), len(tree.classes), [note(tree, decoder)])


def of_trained_tree(tree: Tree, trial: Trial, ranks: Ranks, side: int) -> Source:
    """The same of the training split, augmented, and what is held out. Raises SystemExit for a tree without a test."""
    parts, normalised = splits(tree, trial), cifar10.normalising(ranks.device)
    decoder, order = decoder_of(trial, ranks, side), Order(parts.ids, trial, ranks)
    seen = views.views_augmented(trial.train_augmentation or "none", trial.seed, lambda: order.epoch)
    ahead = decoding(tree, order, decoder, seen)

    def fetch(ids: torch.Tensor) -> Batch:
        return normalised(on_device(ahead.take(ids), ranks)), sent(tree.labels[ids], ranks.device)

    def of_split(split: str, places: torch.Tensor) -> Batch:
        of, ids = parts.at(split, places)
        pixels = decoder.begin(of.paths(ids), [views.MIDDLE] * len(ids)).whole()
        return normalised(on_device(pixels, ranks)), sent(of.labels[ids], ranks.device)

    held_out = HeldOut(
        sizes={split: size for split, size in parts.sizes.items() if split != "train" and size},
        fetch=of_split,
        metrics=lambda: classification(ranks.device, len(tree.classes)),
        update=lambda metrics, model, batch, real: score(metrics, model, batch, real, ranks, trial),
        published=origins(parts.sizes),
        in_both=parts.in_both(ranks),
    )
    feed = Feed(ahead, fetch)
    feed.notes = decoder.damaged.notes
    if library := inputs.library(trial):  # it reads what is trained on; what is held out is decoded by ours
        reading = replace(Reading.of(trial, ranks, side), damaged=decoder.damaged)
        feed = inputs.feed(library, samples_of(tree), order, order.steps, reading)
    notes = [
        described(tree) if library else note(tree, decoder),
        f"tested on {len(parts.test.files):,} images of {parts.test.folder.name}/",
    ]
    return Source(feed, "images", len(parts.ids), len(tree.classes), notes, held_out)


def samples_of(tree: Tree) -> Samples:
    """For a library that reads them."""
    return Samples(tree.labels, folder=tree.folder, files=tree.files)


def decoder_of(trial: Trial, ranks: Ranks, side: int) -> Decoder:
    threads = len(ranks.cores) or torch.get_num_threads()
    return Decoder(side, threads, ranks.device.type == "cuda", DamagedFiles.of(trial))


def on_device(pixels: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """(b, side, side, 3) on the host -> (b, 3, side, side)."""
    return sent(pixels, ranks.device).permute(0, 3, 1, 2)


def described(tree: Tree) -> str:
    return f"{len(tree.files):,} images of {len(tree.classes)} classes"


def note(tree: Tree, decoder: Decoder) -> str:
    return f"{described(tree)}, decoded by {decoder.threads} thread(s) of each rank"
