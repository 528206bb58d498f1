"""As much of torch as the observer looks at, copied beside planted scripts as torch.py: they start in no time.

A step is `autograd.backward(None)` and then `Optimizer().step()`. Nothing is computed, so no batch and no loss is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

__version__ = "2.1.0"
Hook = Callable[..., Any]
_before: list[Hook] = []
_after: list[Hook] = []


class Optimizer:
    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.1, "params": []}]

    def step(self) -> None:
        for hook in (*_before, *_after):
            hook(self, (self,), {})


class Tensor: ...


class Module:
    def __call__(self) -> None: ...


class GradScaler:
    def step(self) -> None: ...

    def scale(self) -> None: ...


class _BaseDataLoaderIter:
    def __next__(self) -> None: ...


def save() -> None: ...


def is_tensor(_: object) -> bool:
    return False


def backward(_: object) -> None: ...


def absent() -> bool:
    return False


is_grad_enabled = absent

optim: Any = ModuleType("torch.optim.optimizer")
optim.Optimizer, optim.register_optimizer_step_pre_hook = Optimizer, _before.append
optim.register_optimizer_step_post_hook = _after.append
sys.modules[optim.__name__] = optim
nn, amp, autograd = SimpleNamespace(Module=Module), SimpleNamespace(GradScaler=GradScaler), SimpleNamespace()
autograd.backward = backward
utils = SimpleNamespace(data=SimpleNamespace(dataloader=SimpleNamespace(_BaseDataLoaderIter=_BaseDataLoaderIter)))
cuda = SimpleNamespace(is_available=absent, is_initialized=absent)
distributed = SimpleNamespace(is_available=absent, is_initialized=absent)
