"""What a script's `build` returns: one configuration, ready to be stepped and measured.                 [torch]"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from scaling_study.measure.memory import Held
from scaling_study.measure.phases import Phase
from scaling_study.measure.timeline import Timeline
from scaling_study.measure.wire import Wire
from scaling_study.workloads import Workload
from scaling_study.workloads.workload import Batch

Loss = torch.Tensor | None  # still on the device; None on a pipeline's ranks that have none
Step = Callable[[Batch], Loss]  # one optimiser step
Weights = dict[str, torch.Tensor]  # by the plain model's names, buffers included


@dataclass
class Training:
    """A step, and what the clock has to know of it. `phase`, `wire` and `timeline` are those that the step marks."""

    step: Step
    workload: Workload
    optimizer: torch.optim.Optimizer
    phase: Phase
    wire: Wire
    weights: Callable[[], Weights] | None = None  # gathers the whole model's, called by all ranks; None: state_dict
    held: Callable[[], Held] | None = None  # state kept outside both, and buckets (measure/memory.py)
    timeline: Timeline | None = None  # of a pipeline: what each stage does when
    stages: Sequence[dict[str, Any]] = ()  # of a pipeline: what its stages on this rank are
    backend: Mapping[str, Any] = field(default_factory=dict)  # what the framework reports once the model is wrapped
