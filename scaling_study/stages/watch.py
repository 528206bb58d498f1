"""Note what torch's schedules do when: their stages' methods, each call between two looks at the clock.   [torch]

The schedule waits for what it receives before it calls them, so that an event is computing and nothing else. The loss
of a micro-batch is computed after its forward, outside the stage: it counts to that forward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from scaling_study.measure import Timeline

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def connected(schedule: Any, stages: Sequence[Any]) -> None:
    """Let torch agree on shapes and open its connections now, which it else does inside the first step.

    What it says to do so would be counted among that step's bytes. The shapes are given, so nothing is computed.
    """
    for stage in stages:
        stage.has_backward = True
        if dist.get_backend() == "gloo":  # torch 2.9 to 2.12 open NCCL's connections so, one to a worker itself too
            stage._get_init_p2p_neighbors_ops = list
    (getattr(schedule, "_initialize_stage", None) or schedule._initialize_stages)((), None)


def watched(stages: Sequence[Any], loss: Loss, timeline: Timeline) -> Loss:
    """Wrap the methods of torch's PipelineStage objects; the loss, wrapped too."""
    last = [0]

    def around(stage: Any, name: str, kind: Callable[..., str]) -> None:
        method = getattr(stage, name)

        @functools.wraps(method)
        def noted(micro_batch: int, *args: Any, **kwargs: Any) -> Any:
            if name == "forward_one_chunk":
                last[0] = micro_batch
            with timeline(kind(**kwargs), stage.stage_index, micro_batch):
                return method(micro_batch, *args, **kwargs)

        setattr(stage, name, noted)

    for stage in stages:
        around(stage, "forward_one_chunk", lambda **_: "forward")
        around(
            stage,
            "backward_one_chunk",
            lambda full_backward=True, **_: "backward" if full_backward else "backward_input",
        )
        around(stage, "backward_weight_one_chunk", lambda **_: "backward_weight")
    final = max(stage.stage_index for stage in stages)

    def noted_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with timeline("forward", final, last[0]):
            return loss(output, target)

    return noted_loss
