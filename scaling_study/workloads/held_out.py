"""Data that a model is evaluated on, and how.                                                             [torch]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from scaling_study.datasets import NoData
from scaling_study.trial import Trial
from scaling_study.workloads.feed import Batch

if TYPE_CHECKING:
    from torchmetrics import Metric

T = TypeVar("T")
Metrics = Mapping[str, "Metric"]  # by the names of targets.py


@dataclass(frozen=True)
class HeldOut:
    """Validation and test data, and the metrics of both. Samples are asked for by their place in the split."""

    sizes: Mapping[str, int]  # split ("validation", "test") -> samples
    fetch: Callable[[str, torch.Tensor], Batch]  # split, places (b,) int64 -> batch
    metrics: Callable[[], Metrics]  # new ones, whose states are sums over samples
    update: Callable[
        [Metrics, nn.Module, Batch, torch.Tensor], None
    ]  # by the samples of a batch that a mask (b,) names
    batch: int = 256  # samples of a rank that are evaluated at once
    published: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # split -> set it was published in -> size
    in_both: Mapping[str, int] = field(default_factory=dict)  # "train/validation" -> samples that are in both


def to_train_on(trial: Trial, read: Callable[[], T]) -> T:
    """Real data, by what reads it. Raises SystemExit where there is none: synthetic data has no result to train to."""
    try:
        if trial.data == "synthetic":
            raise NoData("there is no result to train to on synthetic data")
        return read()
    except NoData as error:
        raise SystemExit(f"--data {trial.data}: {error}") from error
