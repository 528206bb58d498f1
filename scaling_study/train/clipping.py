"""Gradients clipped by their norm, before an optimiser's step.                                             [torch]"""

from __future__ import annotations

from typing import Any

import torch

from scaling_study.measure.training import Norm


def clip(optimizer: torch.optim.Optimizer, max_norm: float, norm: Norm | None = None) -> None:
    """Clip the norm of all gradients before each step of an optimiser that holds them all; else `norm` knows it.

    Once a step: Horovod's optimiser calls both hooks twice, one pair inside the other, and a second clipping by torch's
    max_norm / (norm + 1e-6) takes another 1e-6 away.
    """
    clipped = False

    def before(*_: Any) -> None:
        nonlocal clipped
        held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not clipped and norm is None:
            torch.nn.utils.clip_grad_norm_(held, max_norm)
        elif not clipped and norm is not None:
            torch.nn.utils.clip_grads_with_norm_(held, max_norm, norm(held))
        clipped = True

    def after(*_: Any) -> None:
        nonlocal clipped
        clipped = False

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
