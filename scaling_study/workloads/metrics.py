"""Metrics of held-out data whose states are sums, so that those of several ranks add up (F27).             [torch]

Imported only where something is evaluated: torchmetrics takes two seconds.
"""

from __future__ import annotations

import torch
from torchmetrics.aggregation import MeanMetric
from torchmetrics.classification import BinaryMatthewsCorrCoef


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
