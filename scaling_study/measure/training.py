"""What a script's `build` returns: one configuration, ready to be stepped and measured.                 [torch]"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from scaling_study.measure.memory import Held
from scaling_study.measure.phases import Phase
from scaling_study.measure.rounds import Rounds
from scaling_study.measure.timeline import Timeline
from scaling_study.measure.wire import Wire
from scaling_study.ranks import Ranks
from scaling_study.workloads import Workload
from scaling_study.workloads.workload import Batch

Loss = torch.Tensor | None  # still on the device; None on a pipeline's ranks that have none
Step = Callable[[Batch], Loss]  # one optimiser step
Norm = Callable[[Sequence[torch.nn.Parameter]], torch.Tensor]  # of all gradients, from a rank's own parameters
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
    forward: torch.nn.Module | None = None  # the model as it is called where nothing is trained; None: the workload's
    whole: Callable[[], torch.nn.Module] | None = None  # of a pipeline, called by all ranks: the model to evaluate
    norm: Norm | None = None  # of all gradients, by which they are clipped; None: torch's own, of the optimiser's
    state: Any = None  # of a training to a result: how it is saved and loaded (train/states.py); None: by rank 0
    scaler: Any = None  # of fp16 losses
    rounds: Rounds | None = None  # where a step is a round, of no fixed number of samples
    paused: Callable[[], AbstractContextManager[None]] = nullcontext  # entered by all ranks while nothing is trained
    native: Callable[[Any], int] | None = None  # the library's own loop, where train/loop.py hands over to it
    best: Callable[[], int] | None = None  # of such a loop: put back the best model that it kept; of which step it is
    layout: str = ""  # digest of the model before it was wrapped (train/checkpoints.py); empty: it tells afterwards too
    backend: Mapping[str, Any] = field(default_factory=dict)  # what the framework reports once the model is wrapped


def share_buffers(model: torch.nn.Module, ranks: Ranks) -> None:
    """Rank 0's buffers (BatchNorm's statistics) on every rank; called by all, before an evaluation or a comparison.

    The sum over ranks of which only the first adds anything: so every framework does it alike, by its own collective.
    """
    buffers = list(model.buffers())
    if ranks.world_size == 1 or not buffers:
        return
    ours = torch.cat([buffer.detach().double().reshape(-1).cpu() for buffer in buffers])
    first = torch.tensor(ranks.total((ours if ranks.rank == 0 else torch.zeros_like(ours)).tolist()), dtype=ours.dtype)
    with torch.no_grad():
        for buffer, values in zip(buffers, first.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(values.view_as(buffer))  # exact: fp64 holds every value of the narrower types
