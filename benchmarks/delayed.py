"""The product's ResNets under names of a package, whose steps one learning rate makes 5 % longer.

`verdicts` installs the names as a user's package does (an entry point), so that two configurations of one study may do
the same work under two ids, or differ by a known delay. Without the delay a workload is the product's own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaling_study.ranks import Ranks
    from scaling_study.trial import Trial
    from scaling_study.workloads import Workload

PREFIX = "verdicts_"
DELAYED_RATE = 0.0100005  # the learning rate that marks the delayed configuration of a pair
SHARE = 0.05  # of a step without the delay
REMEMBERED = 15  # steps, most of which may have a pause between two blocks in them


def load(trial: Trial, ranks: Ranks) -> Workload:
    """The ResNet behind the name, delayed where the trial's learning rate says so."""
    from scaling_study.workloads import resnet_cifar10

    workload = resnet_cifar10.load(replace(trial, model=trial.model.removeprefix(PREFIX)), ranks)
    if trial.learning_rate == DELAYED_RATE:
        workload.loss = Delayed(workload.loss)
    return workload


@dataclass
class Delayed:
    """A loss that computes for another SHARE of a step before it begins, on each rank alike.

    A step is the time between two calls, less the delay of the first: the lower quartile of the last REMEMBERED.
    """

    loss: Callable[..., Any]
    clock: Callable[[], float] = time.perf_counter
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    began: float | None = None
    delay: float = 0.0

    def __call__(self, *arguments: Any) -> Any:
        now = self.clock()
        if self.began is not None:
            self.steps.append(now - self.began - self.delay)
        self.began, self.delay = now, SHARE * self.step_seconds()
        while self.clock() < now + self.delay:  # not asleep: a sleeping process loses its core's caches and clock
            pass
        return self.loss(*arguments)

    def step_seconds(self) -> float:
        return sorted(self.steps)[len(self.steps) // 4] if self.steps else 0.0
