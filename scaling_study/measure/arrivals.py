"""When each parameter's gradient is there: the timeline of backward that predictions are made from.      [torch]

    backward  |----fc----|--layer4--|----layer3----|---layer2---|--layer1--|conv1|
              0         g g      g g g          g g g        g g         g g     g     [[bytes, seconds], ...]

A data-parallel framework can send a gradient from this moment on, and what the rest of backward does not hide is
exposed communication (analysis/prediction). One step that is not timed is watched (inspected.py). Of a step that
accumulates, the last backward is what counts: only its gradients travel. Where gradients are not left in plain
parameters' `.grad`, or several of a parameter's copies make them, there is nothing to watch, and the list stays empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Parameter

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.measure.phases import Phase
from scaling_study.trial import Trial

BACKWARD = "backward"


class Arrivals:
    """Records gradients as they come while `watching` is entered: which came when."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._began: Any = None  # of the last backward: seconds, or a CUDA event
        self._noted: list[tuple[int, Any]] = []  # bytes, likewise

    @contextmanager
    def watching(self, parameters: Iterable[Parameter], phase: Phase) -> Iterator[None]:
        """Around one whole step. Its `phase` is on meanwhile, since only that tells where backward begins."""
        hooks = [p.register_post_accumulate_grad_hook(self._arrived) for p in parameters if p.requires_grad]
        phase.on, phase.entered = True, self._entered
        try:
            yield
        finally:
            phase.on, phase.entered = False, None
            for hook in hooks:
                hook.remove()

    @property
    def gradients(self) -> list[list[float]]:
        """[[bytes, seconds since the beginning of backward], ...] in the order in which they came."""
        if self._began is None:
            return []
        return [[size, self._seconds_to(moment)] for size, moment in self._noted]

    def _entered(self, name: str) -> None:
        if name == BACKWARD:
            self._noted, self._began = [], self._moment()

    def _arrived(self, parameter: torch.Tensor) -> None:
        self._noted.append((parameter.numel() * parameter.element_size(), self._moment()))

    def _moment(self) -> Any:
        """Now; on a GPU the host is ahead of the device, so an event on the stream that computes the gradient."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _seconds_to(self, moment: Any) -> float:
        if self.device.type != "cuda":
            return float(moment - self._began)
        moment.synchronize()
        return float(self._began.elapsed_time(moment)) / 1e3


def watchable(trial: Trial) -> bool:
    """Whether each worker leaves whole gradients in plain parameters: no shards, no stages, no replicas of one process.

    Only throughput is predicted, so nothing is watched where something else is looked for.
    """
    table = FRAMEWORKS[trial.framework]
    plain = table.trains and not (table.shards or table.cuts_model or table.one_process or table.has_rounds)
    return plain and trial.find is None
