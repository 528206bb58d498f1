"""What a training takes of its machine: memory, and how busy it keeps cores and GPUs.                      [torch]

Over all of it but for the test, evaluations and checkpoints included. Memory is counted as the clock counts it, with
the activations of one early step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from scaling_study.measure.memory import Memory
from scaling_study.measure.power import PowerMeter
from scaling_study.measure.quiet import QuietMeter
from scaling_study.measure.training import Training
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial

WATCHED = 6  # of this process' steps: by then each gathers and reduces as in every one, and noise.py has its timings
Made = TypeVar("Made")


class Resources:
    """One rank's, from `start` to `stop`."""

    def __init__(self, training: Training, trial: Trial, ranks: Ranks) -> None:
        gpus = [device.index for device in ranks.devices if device.type == "cuda"]
        self.meter, self.quiet = PowerMeter(gpus, ranks.local_rank), QuietMeter()
        self.memory = Memory(training.workload.model, training.optimizer, ranks.device, training.held, ranks.further)
        self.on_gpu = bool(gpus)
        self.watches = not trial.compile  # what is compiled would be compiled anew for it
        self.made = 0  # steps by this process
        self.kinds, self.peak_bytes = dict[str, int](), 0

    def start(self) -> None:
        self.memory.start()
        self.meter.start()
        self.quiet.start()

    def stop(self) -> None:
        self.quiet.stop()
        self.meter.stop()
        self.memory.stop()
        self.kinds, self.peak_bytes = self.memory.by_kind(), self.memory.peak_bytes()

    def step(self, make: Callable[..., Made], *given: Any) -> Made:
        """Make a step, of which one is watched."""
        with self.watching():
            return make(*given)

    def watching(self) -> AbstractContextManager[None]:
        """Enter it around each step."""
        self.made += 1
        return self.memory.watching() if self.watches and self.made == WATCHED else nullcontext()

    def report(self) -> dict[str, Any]:
        """The fields of a RankReport. On a CPU there is no peak of a training whose activations were not seen."""
        whole = self.on_gpu or self.kinds["activations"]
        return {
            "peak_memory_bytes": self.peak_bytes if whole else None, "memory": self.kinds,
            "gpu_utilization_percent": self.meter.utilization_percent, "energy_joules": self.meter.energy_joules,
            "own_cpu_seconds": self.quiet.own_cpu_seconds, "host_cpu_seconds": self.quiet.host_cpu_seconds,
        }  # fmt: skip
