"""Metrics of held-out data whose states are sums, so that those of several ranks add up (F27).             [torch]

Imported only where something is evaluated: torchmetrics takes two seconds.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torchmetrics import Metric
from torchmetrics.aggregation import MeanMetric
from torchmetrics.classification import BinaryMatthewsCorrCoef

from scaling_study.targets import CHOSEN_BY
from scaling_study.workloads.triplet_scores import WIDTH, Surgery, figures


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
        """Nothing: the scores are updated where they are."""

    def compute(self) -> torch.Tensor:
        return torch.tensor(self.figure(), dtype=torch.float64)
