"""Peak memory of training.                                                                              [torch]

On a GPU: the allocator's own peak since the process began, resident data included. On a CPU there is no
allocator to ask and the resident set is mostly the libraries (importing them takes five times the state of a
ResNet-18), so the bytes of tensors are counted by kind, each storage once, with what the resident set grew by since
the libraries were imported beside them. Of what is sharded over workers, a worker's own shard counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch import nn

AT_IMPORT = psutil.Process().memory_info().rss  # scripts import this last: their libraries are in it


class Memory:
    """Enter it around whole steps; then `by_kind` and `peak_bytes` say what they took."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device,
        held: Callable[[], dict[str, Iterable[torch.Tensor]]] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.optimizer, self.device, self.held = model, optimizer, device, held
        self.activations = self.gathered = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what autograd keeps for backward: the activations, at their most when forward ends.

        Weights that were gathered from other workers, which autograd sees too, are counted apart.
        """
        kept: dict[int, int] = {}
        state = {*self._weights(), *_addresses(self.model.buffers())}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.layout == torch.strided:
                storage = _own(tensor).untyped_storage()
                address = storage.data_ptr()
                if address not in state and address not in kept:
                    gathered = {at: size for at, size in self._weights().items() if at not in state}
                    self.gathered = max(self.gathered, sum(gathered.values()))
                    if address not in gathered:
                        kept[address] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield
        self.activations = max(self.activations, sum(kept.values()))

    def _weights(self) -> dict[int, int]:
        """Where the weights lie now, a sharded framework's gathered ones included: address -> bytes."""
        return _addresses(self.model.parameters(), (self.held() if self.held else {}).get("parameters", ()))

    def by_kind(self) -> dict[str, int]:
        """Bytes: parameters, gradients, optimizer (its state), buffers, activations; resident (growth since import).

        Of sharded weights `parameters` is what this worker holds, `gathered` the most that it held beside that.
        A framework that keeps them elsewhere than in the model and the optimiser says where (`held`).
        """
        parameters = list(self.model.parameters())
        found: dict[str, Iterable[torch.Tensor]] = {
            "parameters": parameters,
            "gradients": [p.grad for p in parameters if p.grad is not None],
            "optimizer": _tensors(self.optimizer.state.values()) if self.optimizer else [],
            "buffers": list(self.model.buffers()),
            **{kind: list(tensors) for kind, tensors in (self.held() if self.held else {}).items()},
        }
        sizes = {kind: _bytes(tensors) for kind, tensors in found.items()}
        # freed after a step; at their most there was one for every parameter that this worker holds
        sizes["gradients"] = sizes["gradients"] or _bytes(p for p in found["parameters"] if p.requires_grad)
        resident = max(0, psutil.Process().memory_info().rss - AT_IMPORT)
        gathered = {"gathered": self.gathered} if self.gathered else {}
        return {**sizes, **gathered, "activations": self.activations, "resident": resident}

    def peak_bytes(self) -> int:
        """The device allocator's peak, or on a CPU the sum of the tensors by kind."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return sum(size for kind, size in self.by_kind().items() if kind != "resident")


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [t for v in value for t in _tensors(v)] if isinstance(value, Iterable) and not isinstance(value, str) else []


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """This worker's shard of a DTensor; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _addresses(*groups: Iterable[torch.Tensor]) -> dict[int, int]:
    """Each storage once: address -> bytes."""
    return {s.data_ptr(): s.nbytes() for group in groups for t in group for s in [_own(t).untyped_storage()]}


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(_addresses(tensors).values())
