"""Optimisers of what is trained to a result.                                                              [torch]"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from scaling_study.trial import Trial

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
MOMENTUM = 0.9


def recipe(trial: Trial, own: Make, multiplied_by: int) -> Make:
    """The optimiser that a recipe names, or the workload's own, at the recipe's learning rate.

    The rate is never multiplied by workers: what `own` was `multiplied_by` is divided again.
    """

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = named(trial, parameters) or own(parameters)
        for group in optimizer.param_groups:
            group["lr"] = (trial.learning_rate or group["lr"] / multiplied_by) * rate_scale(trial)
        return optimizer

    return make


def rate_scale(trial: Trial) -> float:
    """What the learning rate is multiplied by: (global batch / reference batch), its root, or 1."""
    ratio = trial.global_batch / (trial.train_reference_batch or trial.global_batch)
    return {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(trial.train_scale_learning_rate or "none", 1.0)


def named(trial: Trial, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
    """The optimiser that the trial names; None for the workload's own."""
    rate, decay = trial.learning_rate or 1.0, trial.train_weight_decay or 0.0
    momentum = MOMENTUM if trial.train_momentum is None else trial.train_momentum
    match trial.train_optimizer:
        case "sgd" | "nesterov" as name:
            nesterov = name == "nesterov" and momentum > 0
            return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay, nesterov=nesterov)
        case "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
    return None
