"""Images that are trained on to a result: split, augmented, and evaluated on what was held out.          [torch]

published training set --stratified--> train | validation          published test set: test
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import inputs
from scaling_study.workloads.feed import (
    Batch,
    Feed,
    HeldOut,
    Metrics,
    batches_of_indices,
    sent,
    steps_per_epoch,
    stratified,
)
from scaling_study.workloads.tree import Reading, Samples, augmented
from scaling_study.workloads.workload import autocast

Images = tuple[torch.Tensor, torch.Tensor]  # (n, 3, side, side) uint8, (n,) int64 labels
VALIDATION = 0.1  # of the training set, unless the trial says otherwise
FIVE, TOP_FIVE = 5, "accuracy_top5"


@dataclass(frozen=True)
class TrainedImages:
    """A rank's batches of the training split, and what is held out."""

    feed: Feed
    held_out: HeldOut
    steps_per_epoch: int


class Order(Iterator[torch.Tensor]):
    """Batches of sample ids of the training split; `epoch` is that of the last."""

    def __init__(self, ids: torch.Tensor, trial: Trial, ranks: Ranks) -> None:
        self.ids, self.epoch, self._taken = ids, 0, 0
        self.steps = steps_per_epoch(len(ids), ranks.world_size, trial.batch_per_worker)
        self._places = batches_of_indices(len(ids), trial.seed, ranks.rank, ranks.world_size, trial.batch_per_worker)

    def __next__(self) -> torch.Tensor:
        places = next(self._places)
        self.epoch, self._taken = self._taken // self.steps, self._taken + 1
        return self.ids[places]


def trained_images(
    train: Images, test: Images, normalised: Callable[[torch.Tensor], torch.Tensor], trial: Trial, ranks: Ranks
) -> TrainedImages:
    """`normalised`: images (b, 3, side, side) uint8 -> what the model is given."""
    share = VALIDATION if trial.train_validation is None else trial.train_validation
    ids, held_out = stratified(train[1], share)
    order, kind, classes = Order(ids, trial, ranks), trial.train_augmentation or "none", len(train[1].unique())
    published, tested = digests(train[0]), digests(test[0])
    shared = in_both({"train": published[ids], "validation": published[held_out], "test": tested})
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
        (images, labels), at = (train, held_out[places]) if split == "validation" else (test, places)
        there = sent(at, ranks.device)
        return normalised(images[there]), labels[there]

    sizes = {"train": len(ids), "validation": len(held_out), "test": len(test[1])}
    return TrainedImages(
        by_library or Feed(order, fetch),
        HeldOut(
            sizes={split: size for split, size in sizes.items() if split != "train" and size},
            fetch=of_split,
            metrics=lambda: classification(ranks.device, classes),
            update=lambda metrics, model, batch, real: score(metrics, model, batch, real, ranks, trial),
            published=origins(sizes),
            in_both=shared,
        ),
        order.steps,
    )


def origins(sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """`{"validation": {"train": 5000}, ...}`: the published set that each split of so many samples was made of."""
    return {split: {"test" if split == "test" else "train": size} for split, size in sizes.items() if size}


def digests(images: torch.Tensor) -> torch.Tensor:
    """(n,) int64 of (n, ...): equal where images are, byte for byte. Half a second for CIFAR-10's 60,000."""
    return torch.tensor([hash(image.tobytes()) for image in images.numpy()], dtype=torch.int64)


def in_both(splits: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """`{"train/validation": 0, ...}`: how many images of the latter are in the former too, by their digests.

    Counted, not claimed: no split of a study may hold what another is judged by.
    """
    pairs = itertools.combinations(splits, 2)
    return {f"{a}/{b}": int(torch.isin(splits[b], splits[a]).sum()) for a, b in pairs}


def classification(device: torch.device, classes: int) -> Metrics:
    """Accuracy and mean cross-entropy, as means over samples in fp64: 3,500 of 10,000 are 0.35. Of more than five
    classes also how often the right one is among the five likeliest."""
    from scaling_study.workloads.metrics import Mean

    names = ("accuracy", *([TOP_FIVE] if classes > FIVE else []), "loss")
    return {name: Mean(device) for name in names}


def score(metrics: Metrics, model: nn.Module, batch: Batch, real: torch.Tensor, ranks: Ranks, trial: Trial) -> None:
    """Add what the model makes of those samples of a batch that `real`, (b,) bool, names."""
    images, labels = batch
    with autocast(ranks.device, trial.precision):
        outputs = model(images)
    outputs, labels = outputs[real].double(), labels[real]
    metrics["accuracy"].update((outputs.argmax(1) == labels).double())
    if TOP_FIVE in metrics:
        metrics[TOP_FIVE].update((outputs.topk(FIVE).indices == labels[:, None]).any(1).double())
    metrics["loss"].update(F.cross_entropy(outputs, labels, reduction="none"))
