"""FairScale's FullyShardedDataParallel on a machine with no GPU.                                       [torch]

The wrapper overlaps its collectives with compute on CUDA streams, names them as torch.cuda everywhere and has no
switch. torch.cpu offers the same names, for streams that order nothing: a CPU does what it is told in the order of the
program, and that is an order the streams allow. So the wrapper, otherwise untouched, trains exactly what it would on a
GPU, and overlaps nothing. Its speed here says nothing about FairScale; its parity, bytes and memory do (frameworks.py).

Where there is a GPU nothing of this is applied.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def adapt(wrapper: ModuleType, bucketer: ModuleType) -> None:
    """Change two modules of FairScale 0.4.13 in place, before a model is wrapped.

    `wrapper` is fairscale.nn.data_parallel.fully_sharded_data_parallel, `bucketer` fairscale.internal.
    reduce_scatter_bucketer: they are passed in, so that only FairScale's own scripts import FairScale.
    """
    vars(wrapper)["torch"] = CpuForCuda("torch")
    # Gradients of a bucket are the rows of a matrix. NCCL takes the matrix whole, Gloo a list of its rows.
    vars(bucketer)["enable_nccl_base_collectives"] = False
    # It tells CUDA's allocator which stream still reads a tensor. A CPU's has no such kernel and needs none.
    torch.Tensor.record_stream = _nothing  # type: ignore[method-assign, assignment]


class CpuForCuda(ModuleType):
    """The module torch, but that its `cuda` is torch.cpu: Stream, stream, current_stream, is_available, synchronize."""

    cuda = torch.cpu

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _nothing(tensor: torch.Tensor, stream: Any) -> None:
    pass
