"""Surgical triplets on held-out videos: what a model's logits come to, by any number of ranks.              [torch]

    frames of a split  --model-->  logits (b, 131)  -->  a table (samples, 131), zero where another rank has the sample
                                                             | added up over ranks (train/evaluate.py)
                                                             v
                                                 every figure, on every rank (triplet_scores.py)

Average precision is no sum over samples, and a mean of the ranks' own would be another figure (F27); the scores are
gathered, by the addition that every framework has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.targets import CHOSEN_BY, TRIPLETS
from scaling_study.trial import Trial
from scaling_study.workloads.feed import Batch, sent
from scaling_study.workloads.held_out import HeldOut, Metrics
from scaling_study.workloads.triplet_scores import COLUMNS, Surgery
from scaling_study.workloads.workload import autocast


@dataclass(frozen=True, kw_only=True)
class HeldOutVideos(HeldOut):
    """Frames of whole videos. The last tensor of each batch are the numbers of its frames, (b,) int64 on the host."""

    surgery: Surgery
    ids: Mapping[str, torch.Tensor]  # split -> (n,) numbers of its frames


def held_out(
    surgery: Surgery, splits: Mapping[str, torch.Tensor], fetch: Callable[[torch.Tensor], Batch], trial: Trial,
    ranks: Ranks, *, published: Mapping[str, Mapping[str, int]] | None = None,
    in_both: Mapping[str, int] | None = None, batch: int = 256,
) -> HeldOutVideos:  # fmt: skip
    """`splits`: "validation", "test" -> (n,) int64 numbers of frames, of whole videos, none in both. `fetch`: such
    numbers -> a batch whose first tensor is what the model is given, on the device."""
    splits = {split: ids for split, ids in splits.items() if len(ids)}
    row_of = torch.full((len(surgery.labels),), -1)
    for ids in splits.values():
        row_of[ids] = torch.arange(len(ids))
    rows = max((len(ids) for ids in splits.values()), default=0)
    labels = torch.from_numpy(surgery.labels.astype(np.float32))

    def of_split(split: str, places: torch.Tensor) -> Batch:
        ids = splits[split][places]
        return (*fetch(ids), ids)

    def metrics() -> Metrics:
        from scaling_study.workloads.metrics import Figure, Mean, Recognition

        recognition = Recognition(surgery, rows, ranks.device)
        others = {name: Figure(recognition, name) for name in TRIPLETS if name != CHOSEN_BY}
        return {CHOSEN_BY: recognition, **others, "loss": Mean(ranks.device)}

    def update(metrics: Metrics, model: nn.Module, batch: Batch, real: torch.Tensor) -> None:
        with autocast(ranks.device, trial.precision):
            outputs = model(batch[0])
        ids, logits = batch[-1][real.cpu()], outputs[real].double()
        metrics[CHOSEN_BY].update(row_of[ids], ids, logits)
        metrics["loss"].update(losses(logits, sent(labels[ids], ranks.device).double()).sum(1))

    sizes = {split: len(ids) for split, ids in splits.items()}
    return HeldOutVideos(
        sizes, of_split, metrics, update, batch, published or {}, in_both or {}, surgery=surgery, ids=splits
    )


def losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(b, 4): binary cross-entropy of each sample, mean over the classes of each part; summed, the published loss."""
    each = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return torch.stack([each[:, columns].mean(1) for columns in COLUMNS.values()], dim=1)
