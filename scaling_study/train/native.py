"""What a library's own training loop is given, where it takes the place of ours.                          [torch]"""

from __future__ import annotations

from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from scaling_study.train.recipe import Recipe
from scaling_study.trial import Trial
from scaling_study.workloads import Workload


def schedule(trial: Trial, workload: Workload) -> Callable[[Optimizer], LambdaLR] | None:
    """Makes torch's scheduler of an optimiser, at the rates that our loop sets itself; None where it does."""
    if trial.train_loop != "native":
        return None
    recipe = Recipe.of(trial, workload.steps_per_epoch, "")
    return lambda optimizer: LambdaLR(optimizer, recipe.rate)
