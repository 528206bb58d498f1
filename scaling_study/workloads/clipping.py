"""SGD under gradients that are clipped to a norm, as language models are trained.                       [torch]

    g <- g x min(1, max_norm / |g|)        |g| over all gradients of the model (Pascanu et al., arXiv 1211.5063)

The norm is of what this optimiser holds: the whole model's in one process and in data parallelism, and of sharded
tensors that know their shards. A pipeline's worker holds some stages; `over` adds the squares of the others' up (of a
weight that several stages share it would count each copy: no model that is clipped has one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class ClippedSGD(torch.optim.SGD):
    """torch's SGD after torch's clip_grad_norm_."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, max_norm: float) -> None:
        super().__init__(parameters, lr=lr)
        self.max_norm = max_norm
        self.over: Callable[[torch.Tensor], torch.Tensor] = lambda squares: squares

    def step(self, closure: Any = None) -> Any:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in held])
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        norm = self.over(norm**2).sqrt()
        torch.nn.utils.clip_grads_with_norm_(held, self.max_norm, norm)
        return super().step(closure)
