"""Data sets that are trained on to a result: what is held out, what splits share, how a classifier is scored. [torch]

published training set --stratified--> train | validation          published test set: test
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.feed import Batch, HeldOut, Metrics
from scaling_study.workloads.workload import autocast

VALIDATION = 0.1  # of the training set, unless the trial says otherwise
FIVE, TOP_FIVE = 5, "accuracy_top5"
PAIRS = ("train/validation", "train/test", "validation/test")
SPLIT_SEED = 20_001  # of every trial: no run trains on what another selects by


def validation_share(trial: Trial) -> float:
    return VALIDATION if trial.train_validation is None else trial.train_validation


def stratified(labels: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(training ids, validation ids), each int64 and sorted, of labels (n,); `share` of each class is held out."""
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique(sorted=True):
        ids = (labels == label).nonzero().flatten()
        held_out[ids[torch.randperm(len(ids), generator=generator)[: round(share * len(ids))]]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def origins(sizes: Mapping[str, int], tested_on: str = "test") -> dict[str, dict[str, int]]:
    """`{"validation": {"train": 5000}, ...}`: the published set that each split of so many samples was made of."""
    return {split: {tested_on if split == "test" else "train": size} for split, size in sizes.items() if size}


Logits = Callable[
    [nn.Module, Batch], torch.Tensor
]  # of a model and a batch, whose last tensor are labels: (b, classes)


def held_out_classes(
    sizes: Mapping[str, int],
    fetch: Callable[[str, torch.Tensor], Batch],
    logits: Logits,
    metrics: Callable[[], Metrics],
    shared: Mapping[str, int],
    tested_on: str = "test",
) -> HeldOut:
    """The data that a classifier is evaluated on. `sizes`: of all splits; `shared`: of in_both(); `tested_on`: the
    published set that is the test's."""
    return HeldOut(
        sizes={split: size for split, size in sizes.items() if split != "train" and size},
        fetch=fetch,
        metrics=metrics,
        update=lambda metrics, model, batch, real: score(metrics, logits(model, batch)[real], batch[-1][real]),
        published=origins(sizes, tested_on),
        in_both=shared,
    )


def held_out_images(
    sizes: Mapping[str, int],
    fetch: Callable[[str, torch.Tensor], Batch],
    classes: int,
    shared: Mapping[str, int],
    trial: Trial,
    ranks: Ranks,
) -> HeldOut:
    """The data that a classifier of images is evaluated on, (images, labels) of `fetch`, as held_out_classes()."""

    def logits(model: nn.Module, batch: Batch) -> torch.Tensor:
        with autocast(ranks.device, trial.precision):
            return model(batch[0])  # type: ignore[no-any-return]

    return held_out_classes(sizes, fetch, logits, lambda: classification(ranks.device, classes), shared)


def counted_by_one(ranks: Ranks, count: Callable[[], Mapping[str, int]]) -> dict[str, int]:
    """Samples that two splits share, by PAIRS. Called by all ranks; rank 0 alone counts, which takes reading files."""
    counted = count() if ranks.rank == 0 else {}
    return {pair: int(ranks.agree(counted.get(pair, 0))) for pair in PAIRS}


def refuse_other_data(folder: Path, what: str, content: bytes, ranks: Ranks) -> None:
    """Called by all ranks. Raises SystemExit where `content`, which tells the data apart, is not that of rank 0."""
    number = int(hashlib.sha256(content).hexdigest()[:12], 16)  # exact as fp64
    if ranks.agree(number) != number:
        raise SystemExit(f"{folder} of rank {ranks.rank} holds other {what} than that of rank 0: copy one of the two")


def in_both(splits: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """`{"train/validation": 0, ...}`: how many samples of the latter are in the former too, by their digests."""
    pairs = itertools.combinations(splits, 2)
    return {f"{a}/{b}": int(torch.isin(splits[b], splits[a]).sum()) for a, b in pairs}


def row_digests(rows: torch.Tensor) -> torch.Tensor:
    """(n,) int64 of (n, ...): equal where rows are, byte for byte. Half a second for CIFAR-10's 60,000 images."""
    return torch.tensor([hash(row.tobytes()) for row in rows.numpy()], dtype=torch.int64)


def classification(device: torch.device, classes: int, matthews: bool = False) -> Metrics:
    """Accuracy and mean cross-entropy, as means over samples in fp64: 3,500 of 10,000 are 0.35. Of more than five
    classes also how often the right one is among the five likeliest; of two also Matthews' correlation."""
    from scaling_study.workloads.metrics import Matthews, Mean  # torchmetrics takes two seconds

    names = ("accuracy", *([TOP_FIVE] if classes > FIVE else []), "loss")
    return {**({"matthews": Matthews(device)} if matthews else {}), **{name: Mean(device) for name in names}}


def score(metrics: Metrics, logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Add the logits (b, classes) of some samples and their labels (b,)."""
    logits, chosen = logits.double(), logits.argmax(1)
    if "matthews" in metrics:
        metrics["matthews"].update(chosen, labels)
    metrics["accuracy"].update((chosen == labels).double())
    if TOP_FIVE in metrics:
        metrics[TOP_FIVE].update((logits.topk(FIVE).indices == labels[:, None]).any(1).double())
    metrics["loss"].update(F.cross_entropy(logits, labels, reduction="none"))


END = 4096  # bytes: many JPEGs begin with the same tables, and hardly two end alike


def file_digests(files: Sequence[Path]) -> torch.Tensor:
    """(n,) int64, equal where files are, byte for byte: two splits may share none (F18, F22).

    Files of one size are told apart by their ends, and of one end by all their bytes. So of a million photographs
    hardly one is read whole: a training that begins does not wait for 140 GB.
    """
    keys: list[tuple[object, ...]] = [()] * len(files)
    for look in (_size, _end, _whole):
        alike = Counter(keys)
        keys = [(*key, look(file)) if alike[key] > 1 else key for key, file in zip(keys, files, strict=True)]
    number: dict[tuple[object, ...], int] = {}
    return torch.tensor([number.setdefault(key, len(number)) for key in keys], dtype=torch.int64)


def _size(file: Path) -> int:
    return file.stat().st_size


def _end(file: Path) -> bytes:
    with file.open("rb") as stream:
        stream.seek(-min(END, _size(file)), os.SEEK_END)
        return hashlib.sha256(stream.read()).digest()


def _whole(file: Path) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
