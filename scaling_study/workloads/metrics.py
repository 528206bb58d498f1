"""Metrics of held-out data whose states are sums, so that those of several ranks add up (F27).            [torch]

Imported only where something is evaluated: torchmetrics takes two seconds. Of surgical triplets:

| figure | scores | labels |
| --- | --- | --- |
| `ap_i` `ap_v` `ap_t` `ap_ivt` | a head's own | the instruments, verbs, targets, triplets of a frame |
| `ap_iv` `ap_it` | the product of both heads' probabilities | whether a triplet of that pair is in the frame |
| `ap_i_of_triplets` ... `ap_it_of_triplets` | the likeliest triplet that has the class, or the pair | the same |
| `ap_heads` | the mean of the four heads' own, by which the best model is chosen | |
| `top5_ivt` | the five likeliest triplets of a frame | the share of all its triplets that are among them |

Average precision is no sum over samples; so scores are gathered, by the addition that every framework has. What is
published as IV and IT is of triplet scores (Nwoye et al., Medical Image Analysis 78, 2022), as their package derives
every component: that says nothing of a component's own head, so both kinds have names of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.aggregation import MeanMetric
from torchmetrics.classification import BinaryMatthewsCorrCoef

from scaling_study.ranks import Ranks
from scaling_study.stats import scores as ap
from scaling_study.targets import CHOSEN_BY, TRIPLETS
from scaling_study.trial import Trial
from scaling_study.workloads.cholect45 import Surgery
from scaling_study.workloads.feed import Batch, HeldOut, Metrics, sent
from scaling_study.workloads.workload import autocast


class Mean(MeanMetric):
    """The mean of all values, in fp64; one that is no number stays visible."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(nan_strategy="disable", sync_on_compute=False)
        self.to(device).set_dtype(torch.float64)


class Perplexity(Mean):
    """e to the mean of the tokens' losses. torchmetrics' own goes through probabilities, which round to 0."""

    def compute(self) -> torch.Tensor:
        return super().compute().exp()


class Matthews(BinaryMatthewsCorrCoef):
    """Matthews' correlation of predicted and true classes, (n,) of 0 and 1 each: 1 for all right, 0 for a guess.

    A model that always says the same has 0, as scikit-learn has it, by which CoLA is scored; torchmetrics has small
    numbers of either sign there, which depend on how many classes there are of each.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(validate_args=False, sync_on_compute=False)
        self.to(device)

    def compute(self) -> torch.Tensor:
        counts: torch.Tensor = self.confmat  # of the true class, then of the predicted one
        (no_no, no_yes), (yes_no, yes_yes) = counts.double()
        scale = ((yes_yes + no_yes) * (yes_yes + yes_no) * (no_no + no_yes) * (no_no + yes_no)).sqrt()
        return torch.where(scale > 0, (yes_yes * no_no - no_yes * yes_no) / scale, 0.0)


class Recognition(Metric):
    """The scores of a whole split of surgical frames, and every figure of them; its own is the heads' mean.

    A rank writes the rows of its own samples, and what it does not have is 0: so the tables of all ranks add up."""

    full_state_update = False
    scores: torch.Tensor  # (rows, 131) logits
    frames: torch.Tensor  # (rows,) the number of each row's frame, plus 1; 0: no frame

    def __init__(self, surgery: Surgery, rows: int, device: torch.device) -> None:
        super().__init__(sync_on_compute=False)
        self.surgery = surgery
        self.add_state("scores", torch.zeros(rows, WIDTH), dist_reduce_fx="sum")
        self.add_state("frames", torch.zeros(rows, dtype=torch.float64), dist_reduce_fx="sum")
        self.to(device)

    def update(self, rows: torch.Tensor, ids: torch.Tensor, logits: torch.Tensor) -> None:
        """At `rows`, (b,), the frames `ids`, (b,), with `logits`, (b, 131)."""
        self.__dict__.pop("figures", None)
        there = rows.to(self.scores.device)
        self.scores[there] = logits.to(self.scores)
        self.frames[there] = ids.to(self.frames) + 1

    def compute(self) -> torch.Tensor:
        return torch.tensor(self.figures[CHOSEN_BY], dtype=torch.float64)

    @cached_property
    def figures(self) -> dict[str, float]:
        """targets.TRIPLETS, once all samples are there."""
        seen = self.frames > 0
        ids = (self.frames[seen].cpu().numpy() - 1).astype(np.int64)
        return figures(self.scores[seen].double().cpu().numpy(), ids, self.surgery)


class Figure(Metric):
    """One figure of the scores that another metric holds; it has no state of its own."""

    full_state_update = False

    def __init__(self, recognition: Recognition, name: str) -> None:
        super().__init__(sync_on_compute=False)
        self.figure = lambda: recognition.figures[name]  # in a function: else all of that would be a part of this

    def update(self) -> None:
        """Scores are updated where they are."""

    def compute(self) -> torch.Tensor:
        return torch.tensor(self.figure(), dtype=torch.float64)


COLUMNS = {"i": slice(0, 6), "v": slice(6, 16), "t": slice(16, 31), "ivt": slice(31, 131)}  # of labels and logits
WIDTH, TOP = 131, 5
PARTS_OF = {"i": (0,), "v": (1,), "t": (2,), "iv": (0, 1), "it": (0, 2)}  # -> columns of maps.txt
Scores = NDArray[np.floating[Any]]


def figures(logits: Scores, ids: NDArray[np.int64], surgery: Surgery) -> dict[str, float]:
    """targets.TRIPLETS of frames `ids`, (n,), with `logits`, (n, 131); nan where a score is no number, or none is."""
    if not len(ids) or not np.isfinite(logits).all():
        return dict.fromkeys(TRIPLETS, float("nan"))
    labels, video = surgery.labels[ids], surgery.video[ids]
    heads = {name: (logits[:, columns], labels[:, columns]) for name, columns in COLUMNS.items()}
    scores, true = heads["ivt"]
    values = {f"ap_{name}": ap.mean(*of_head, video) for name, of_head in heads.items()}
    values[CHOSEN_BY] = sum(values.values()) / len(values)
    values["top5_ivt"] = ap.in_top(scores, true, TOP)
    for name, parts in PARTS_OF.items():
        groups = members(surgery.triplets, parts)
        shown = ap.grouped(true, list(groups.values()))
        values[f"ap_{name}_of_triplets"] = ap.mean(ap.grouped(scores, list(groups.values())), shown, video)
        if len(parts) > 1:
            classes = np.array(list(groups))
            of_heads = [log_probability(heads[letter][0])[:, at] for letter, at in zip(name, classes.T, strict=True)]
            values[f"ap_{name}"] = ap.mean(np.sum(of_heads, axis=0), shown, video)
    return {name: values[name] for name in TRIPLETS}


def members(triplets: NDArray[np.int64], parts: tuple[int, ...]) -> dict[tuple[int, ...], list[int]]:
    """Class of these parts, or pair of classes -> the triplets that have it; in order."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, triplet in enumerate(triplets):
        groups.setdefault(tuple(int(triplet[part]) for part in parts), []).append(number)
    return dict(sorted(groups.items()))


def log_probability(logits: Scores) -> Scores:
    """Exact where the probability itself rounds to 0 or 1. Sums of these have the order of the products."""
    return -np.logaddexp(0.0, -logits)


@dataclass(frozen=True, kw_only=True)
class HeldOutVideos(HeldOut):
    """Frames of whole videos. The last tensor of each batch are the numbers of its frames, (b,) int64 on the host."""

    surgery: Surgery
    ids: Mapping[str, torch.Tensor]  # split -> (n,) numbers of its frames


def held_out(
    surgery: Surgery,
    splits: Mapping[str, torch.Tensor],
    fetch: Callable[[torch.Tensor], Batch],
    trial: Trial,
    ranks: Ranks,
    *,
    published: Mapping[str, Mapping[str, int]] | None = None,
    in_both: Mapping[str, int] | None = None,
    batch: int = 256,
) -> HeldOutVideos:
    """Frames that a model of triplets is evaluated on, and its metrics.

    `splits`: "validation", "test" -> (n,) int64 numbers of frames, of whole videos, none in both. `fetch`: such
    numbers -> a batch whose first tensor is what the model is given, on the device.
    """
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
