"""What a library's own training loop is given, where it takes the place of ours.                          [torch]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from scaling_study.train.recipe import Recipe
from scaling_study.trial import Trial
from scaling_study.workloads import Workload

Schedule = Callable[[Optimizer], Any]


def schedule(
    trial: Trial, workload: Workload, one_cycle: Callable[..., Any] | None = None, steps: int = 0
) -> Schedule | None:
    """Makes the scheduler of an optimiser that has made `steps`, at the rates that our loop sets itself; None where it
    does.

    Torch's, or DeepSpeed's own `one_cycle` where that is the recipe's: without the betas that it would move too.
    """
    if trial.train_loop != "native":
        return None
    recipe = Recipe.of(trial, workload.steps_per_epoch, "")
    if one_cycle is None or recipe.schedule != "triangular":
        return lambda optimizer: LambdaLR(optimizer, recipe.rate, last_epoch=steps - 1)

    def own(optimizer: Optimizer) -> Any:
        (group,) = optimizer.param_groups
        largest = group["initial_lr"] = group["lr"]  # as torch's schedulers note it: this one begins with another
        half = (recipe.cycle_steps or 0) / 2
        return one_cycle(optimizer, recipe.start * largest, largest, cycle_first_step_size=half, cycle_momentum=False)

    return own
