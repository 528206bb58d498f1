"""A framework's own script, joined and built, and not measured: its step, its workload, its ranks.             [torch]

The benchmarks time the very step that a study would, built by the script's own `join` and `build`, and not one that is
written down a second time here.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.measure import Training, surroundings
from scaling_study.measure.clock import Stopwatch
from scaling_study.ranks import Ranks, as_launched
from scaling_study.settings import CHECKOUT
from scaling_study.trial import Trial


@dataclass
class Built:
    """What a script hands to the clock."""

    training: Training
    trial: Trial  # as launched
    ranks: Ranks

    def seconds(self, steps: int) -> float:
        """Time `steps` steps as measure/clock.py does: the batch iterator counts, one lap a step.

        The garbage collector is the caller's business: settled() walks all objects, on each rank for another time, and
        must lie before the ranks' start together, for both sides of a comparison.
        """
        watch = Stopwatch(self.ranks.device)
        watch.start()
        for _ in range(steps):
            batch = next(self.training.workload.batches)
            self.training.step(batch)
            watch.lap()
        return sum(watch.seconds())

    def rate(self, steps: int) -> float:
        """Samples per second of this rank over `steps` steps."""
        return steps * self.training.workload.samples_per_step / self.seconds(steps)

    def samples(self, steps: int) -> int:
        """Of all ranks in so many steps."""
        return self.training.workload.samples_per_step * self.ranks.world_size * steps

    @property
    def facts(self) -> dict[str, Any]:
        """Beside what was timed."""
        return {
            "workers": self.ranks.world_size, "parameters": self.training.workload.parameters, **self.ranks.backend
        }  # fmt: skip


def build(trial: Trial, ranks: Ranks | None = None) -> Built:
    """Build the trial by its script; join first, which pins this process to the trial's cores, unless `ranks` did."""
    script = runpy.run_path(str(CHECKOUT / FRAMEWORKS[trial.framework].script))
    if trial.allocator == "fixed":  # of the process: whatever it is compared with has it too
        surroundings.fix_thresholds()
    ranks = ranks or script["join"](trial)
    trial = as_launched(trial, ranks)
    training = script["build"](trial, ranks)
    return Built(training, trial, replace(ranks, backend={**ranks.backend, **training.backend}))


def rate(seconds: Callable[[], float], samples: float) -> float:
    """Samples/s over a block of `samples` of all ranks, which they begin together, by the slowest of them."""
    with surroundings.settled():
        if dist.is_initialized():
            dist.barrier()
        took = torch.tensor([seconds()], dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return samples / float(took)
