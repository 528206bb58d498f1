"""A framework's own script, stopped where it would begin to measure: its step, its workload, its ranks.       [torch]

The benchmarks time the very step that a study would, built by the script's own path (join, build, wrap), and not
one that is written down a second time here.
"""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.measure.clock import Step
from scaling_study.measure.stopwatch import Stopwatch
from scaling_study.ranks import Ranks
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial
from scaling_study.workloads import Workload


@dataclass
class Built:
    """What a script hands to the clock."""

    step: Step
    workload: Workload
    ranks: Ranks
    optimizer: torch.optim.Optimizer

    def seconds(self, steps: int) -> float:
        """Time `steps` steps as measure/clock.py does: the batch iterator counts, one lap a step.

        The garbage collector is the caller's business: settled() walks all objects, on each rank for another time, and
        must lie before the ranks' start together, for both sides of a comparison.
        """
        watch = Stopwatch(self.ranks.device)
        watch.start()
        for _ in range(steps):
            batch = next(self.workload.batches)
            self.step(batch)
            watch.lap()
        return sum(watch.seconds())

    def rate(self, steps: int) -> float:
        """Samples per second of this rank over `steps` steps."""
        return steps * self.workload.samples_per_step / self.seconds(steps)


def build(trial: Trial) -> Built:
    """Run the trial's script up to its call of `measure`. It pins this process to the trial's cores."""
    caught: list[Built] = []

    def stop_here(step: Step, workload: Workload, trial: Trial, ranks: Ranks, **given: Any) -> None:
        caught.append(Built(step, workload, ranks, given["optimizer"]))

    with mock.patch("scaling_study.measure.measure", stop_here):
        runpy.run_path(str(CHECKOUT / FRAMEWORKS[trial.framework].script))["main"](trial)
    return caught[0]
