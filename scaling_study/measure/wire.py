"""Bytes handed to collectives, counted at the call.                                                    [torch]

A script names the function through which its framework hands over tensors:

    wire.watch(horovod.torch.optimizer, "allreduce_async_", "allreduce")

During the first warm-up step, and only then, that function is replaced by one that adds up the bytes of
the tensors it is given and calls the original. What crosses the network is another thing (a ring moves
2 (n-1)/n of it) and is derived later.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from types import TracebackType
from typing import Any

import torch


class Wire:
    """Counts while it is entered as a context: `with wire: step()`."""

    def __init__(self) -> None:
        self.bytes: defaultdict[str, int] = defaultdict(int)  # by kind of collective
        self._watched: list[tuple[Any, str, str]] = []
        self._originals: list[tuple[Any, str, Any]] = []

    def watch(self, owner: Any, name: str, kind: str) -> None:
        """Count the tensors in the arguments of `owner.name` as `kind` (allreduce, all_gather, ...)."""
        self._watched.append((owner, name, kind))

    @property
    def watched(self) -> bool:
        return bool(self._watched)

    def __enter__(self) -> Wire:
        for owner, name, kind in self._watched:
            original = getattr(owner, name)
            self._originals.append((owner, name, original))
            setattr(owner, name, self._counting(original, kind))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for owner, name, original in self._originals:
            setattr(owner, name, original)
        self._originals.clear()

    def _counting(self, original: Any, kind: str) -> Any:
        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.bytes[kind] += sum(map(tensor_bytes, (*args, *kwargs.values())))
            return original(*args, **kwargs)

        return counted


def tensor_bytes(value: Any) -> int:
    """Bytes of a tensor, or of the tensors in a list or tuple; 0 for anything else."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(tensor_bytes, value)) if isinstance(value, list | tuple) else 0
