"""Recipe of a training: when it ends, when it is evaluated, and the learning rate of each step. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling_study.targets import Target
from scaling_study.trial import Trial

RISE, START, FALL = 0.3, 1 / 25, 1 / 10_000  # of one cycle, as torch's OneCycleLR (Smith & Topin, arXiv 1708.07120)


@dataclass(frozen=True)
class Recipe:
    steps: int | None  # in all; None: until its time is over
    steps_per_epoch: int
    evaluate_every: int  # steps
    schedule: str
    warmup_steps: int
    max_seconds: float | None  # of training
    target: Target | None
    metric: str  # that tells which model is better
    patience: int | None  # evaluations
    start: float = START  # of a cycle: the rate that it begins with, over the largest
    cycle_steps: int | None = None  # of `triangular`; None: all

    @classmethod
    def of(cls, trial: Trial, steps_per_epoch: int, metric: str) -> Recipe:
        """`metric`: of the workload, where no target names another. Raises SystemExit."""
        steps = trial.train_steps or (trial.train_epochs and trial.train_epochs * steps_per_epoch)
        target = Target.parse(trial.train_target) if trial.train_target else None
        first, largest = trial.train_start_learning_rate, trial.learning_rate
        if first is not None and largest is None:
            raise SystemExit(f"start_learning_rate={first:g} needs a learning_rate to grow to")
        return cls(
            steps=steps,
            steps_per_epoch=steps_per_epoch,
            evaluate_every=max(1, round((trial.train_evaluate_every or 1.0) * steps_per_epoch)),
            schedule=trial.train_schedule or "constant",
            warmup_steps=trial.train_warmup_steps or 0,
            max_seconds=trial.train_max_seconds,
            target=target,
            metric=target.metric if target else metric,
            patience=trial.train_patience,
            start=START if first is None or largest is None else first / largest,
            cycle_steps=trial.train_cycle_steps or steps,
        )

    def rate(self, step: int) -> float:
        """The factor of the learning rate in the step of this number, from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "triangular" and self.cycle_steps:
            return self._triangular(step, self.cycle_steps / 2)
        if self.steps is None or self.schedule == "constant":
            return 1.0
        if self.schedule == "one_cycle":
            return self._one_cycle(step, self.steps)
        past = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * past))
        return 1.0 if past < 0.5 else 0.1 if past < 0.75 else 0.01

    def _triangular(self, step: int, half: float) -> float:
        """Up and down in straight lines, then as it began: DeepSpeed's OneCycle, without its decay after the cycle."""
        return self.start + (1.0 - self.start) * max(0.0, 1.0 - abs(step / half - 1.0))

    def _one_cycle(self, step: int, steps: int) -> float:
        top, last = RISE * steps - 1, steps - 1
        if step <= top:
            return _between(self.start, 1.0, step / top)
        return _between(1.0, FALL * self.start, (step - top) / (last - top) if last > top else 1.0)

    def most_steps(self, step_seconds: float) -> float:
        """The most steps that there are, at so many seconds a step."""
        known = math.inf if self.steps is None else self.steps
        return min(known, math.inf if self.max_seconds is None else self.max_seconds / step_seconds)

    def next_stop(self, step: int) -> int:
        """The step before which training stops for an evaluation, or for good."""
        following = (step // self.evaluate_every + 1) * self.evaluate_every
        return following if self.steps is None else min(following, self.steps)


def _between(start: float, end: float, part: float) -> float:
    """From start to end along half a cosine."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * part))
