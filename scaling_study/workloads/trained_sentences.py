"""Sentences that are trained on to a result: split, and scored as CoLA is.                                 [torch]

    published training sentences --stratified--> train | validation     published development sentences: test

A sentence that is in the test data too is left out of both, and one of validation out of training: a few were published
twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads import cola
from scaling_study.workloads.cola import Sentences
from scaling_study.workloads.feed import Batch, Feed
from scaling_study.workloads.held_out import HeldOut, Metrics
from scaling_study.workloads.splits import stratified
from scaling_study.workloads.trained_images import VALIDATION, Order, classification, digests, in_both

Logits = Callable[[nn.Module, Batch], torch.Tensor]  # of (ids, mask, labels): (b, 2)


@dataclass(frozen=True)
class TrainedSentences:
    """A rank's batches of the training split, and what is held out."""

    feed: Feed
    held_out: HeldOut
    steps_per_epoch: int
    left_out: int  # published training sentences that are in no split


def trained_sentences(
    train: Sentences, test: Sentences, width: int, logits: Logits, trial: Trial, ranks: Ranks
) -> TrainedSentences:
    """`width`: tokens that a sentence is cut or padded to; `logits`: what the model makes of a batch."""
    share, padding = VALIDATION if trial.train_validation is None else trial.train_validation, trial.padding or "fixed"
    marks, tested = digests(whole(train, test)), digests(whole(test, train))
    ids, held_out = disjoint(torch.from_numpy(train.labels), marks, tested, share)
    order = Order(ids, trial, ranks)
    of_train, of_test = (cola.gathered(data, ranks.device, width, padding) for data in (train, test))

    def of_split(split: str, places: torch.Tensor) -> Batch:
        return of_train(held_out[places]) if split == "validation" else of_test(places)

    sizes = {"train": len(ids), "validation": len(held_out), "test": len(test.labels)}
    held = HeldOut(
        sizes={split: size for split, size in sizes.items() if split != "train" and size},
        fetch=of_split,
        metrics=lambda: acceptability(ranks.device),
        update=lambda metrics, model, batch, real: score(metrics, logits(model, batch)[real], batch[2][real]),
        published={
            split: {"development" if split == "test" else "train": size} for split, size in sizes.items() if size
        },
        in_both=in_both({"train": marks[ids], "validation": marks[held_out], "test": tested}),
    )
    return TrainedSentences(Feed(order, of_train), held, order.steps, len(marks) - len(ids) - len(held_out))


def whole(sentences: Sentences, others: Sentences) -> torch.Tensor:
    """Every sentence in a row, uncut, (n, tokens of the longest of both) int64: equal where a model sees no difference.

    What a tokeniser drops, as capital letters, tells no two sentences apart."""
    longest = max(int(data.lengths.max()) for data in (sentences, others))
    return cola.table(sentences, longest)[0]


def disjoint(
    labels: torch.Tensor, marks: torch.Tensor, tested: torch.Tensor, share: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(training ids, validation ids): `share` of each class is held out, and no sentence is in two splits.

    `labels`, `marks`: (n,) of the published training sentences; `tested`: marks of the test's; alike: the same one.
    """
    free = (~torch.isin(marks, tested)).nonzero().flatten()
    train, held_out = (free[places] for places in stratified(labels[free], share))
    return train[~torch.isin(marks[train], marks[held_out])], held_out


def acceptability(device: torch.device) -> Metrics:
    """Matthews' correlation, by which CoLA is scored (Warstadt et al., arXiv 1805.12471), accuracy and loss."""
    from scaling_study.workloads.metrics import Matthews

    return {"matthews": Matthews(device), **classification(device, cola.CLASSES)}


def score(metrics: Metrics, logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Add what a model makes of some sentences: (b, 2) and (b,)."""
    logits, chosen = logits.double(), logits.argmax(1)
    metrics["matthews"].update(chosen, labels)
    metrics["accuracy"].update((chosen == labels).double())
    metrics["loss"].update(F.cross_entropy(logits, labels, reduction="none"))
