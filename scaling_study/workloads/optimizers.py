"""Optimisers of what is trained to a result.                                                              [torch]"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from scaling_study import parts
from scaling_study.trial import Trial

Make = Callable[[Iterable[Any]], torch.optim.Optimizer]  # of parameters, or of groups of them
MOMENTUM = 0.9
NAME = "name"  # of a group, beside what torch has in it


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


def by_part(trial: Trial, model: nn.Module, own: Make) -> Make:
    """The same optimiser with a group for each part of the model, at its own rate where the trial gives one.

    A parameter that asks for no gradient is in none. Groups that are made already (grouped) stay as they are.
    """
    rates = parts.rates(trial.part_learning_rates)

    def make(parameters: Iterable[Any]) -> torch.optim.Optimizer:
        optimizer = own(grouped(model, parameters))
        for group in optimizer.param_groups:
            if (rate := rates.get(group.get(NAME, ""))) is not None:
                group["lr"] = rate * rate_scale(trial)
        return optimizer

    return make


def grouped(model: nn.Module, parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """Groups of a model's parameters by its parts, in the order of parts.PARTS; of groups, they themselves.

    Raises SystemExit for parameters that are not the model's own: a framework that makes others of them (FairScale's
    FSDP) can treat no part otherwise than another.
    """
    given = list(parameters)
    if given and isinstance(given[0], Mapping):
        return given
    part_of = {id(parameter): name.partition(".")[0] for name, parameter in model.named_parameters()}
    groups: dict[str, list[nn.Parameter]] = {part: [] for part in parts.PARTS}
    for parameter in given:
        if id(parameter) not in part_of:
            raise SystemExit("this framework flattens weights: no part of them can be frozen or have a rate of its own")
        if parameter.requires_grad:
            groups[part_of[id(parameter)]].append(parameter)
    return [{"params": held, NAME: part} for part, held in groups.items() if held]


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
