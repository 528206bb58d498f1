"""Optimiser steps that were left out because a gradient of fp16 was not finite.                         [torch]

A scaler of losses (torch's, FairScale's, DeepSpeed's, Lightning's) begins with a scale that is too large, and lowers it
each time that it finds such a gradient, without calling the optimiser. The step is then shorter than others, and
trains nothing. All of them call the same method of the optimiser otherwise, so that is where steps are seen: on the
host, with no wait for the device.
"""

from __future__ import annotations

import torch

from scaling_study.measure.training import Loss, Step
from scaling_study.trial import Trial
from scaling_study.workloads.workload import Batch


class SkippedSteps:
    """`count` of the steps made through `counting` in which the optimiser took none; None where nothing scales."""

    def __init__(self, optimizer: torch.optim.Optimizer, trial: Trial) -> None:
        self.count: int | None = 0 if trial.precision == "fp16" else None
        self._taken = False
        if self.count is not None:
            optimizer.register_step_post_hook(self._noted)

    def counting(self, step: Step) -> Step:
        """The step, after which it is known whether the optimiser was called in it."""
        if self.count is None:
            return step

        def counted(batch: Batch) -> Loss:
            self._taken = False
            loss = step(batch)
            self.count = (self.count or 0) + (not self._taken)
            return loss

        return counted

    def since(self, before: int | None) -> int | None:
        """How many more there are than `before`."""
        return None if self.count is None or before is None else self.count - before

    def _noted(self, *_: object) -> None:
        self._taken = True
