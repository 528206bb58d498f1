"""FSDP2 for scripts: meshes, gathers in 16 bits, stages of pipelines, and a reduction that Gloo lacks.       [torch]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial

CASTS_MATRICES_ONLY = hasattr(MixedPrecisionPolicy, "param_dtype_override_fn")
GATHERED_IN_FP32 = "weights are gathered in fp32: before torch 2.15 FSDP2 casts all of them or none"


def mesh_of(trial: Trial, ranks: Ranks) -> DeviceMesh:
    """The mesh that `fully_shard` takes: one dimension, or with a shard group of fewer workers two.

    4 workers, shard_group 2        shard
                          replicate 0   1        a row holds one copy of the model; gradients of a shard are
                                    2   3        averaged down its column. Neighbours, often of one host, shard
    """
    workers = ranks.world_size
    group = trial.shard_group or workers
    if group == workers:
        return init_device_mesh(ranks.device.type, (workers,))
    return init_device_mesh(ranks.device.type, (workers // group, group), mesh_dim_names=("replicate", "shard"))


def gathered_in(dtype: torch.dtype | None) -> dict[str, Any]:
    """MixedPrecisionPolicy's keywords that gather matrices in `dtype` and vectors as they are, where this torch can."""
    if dtype is None or not CASTS_MATRICES_ONLY:
        return {}
    vectors = {"param_dtype_override_fn": lambda parameter: parameter.dtype if parameter.ndim < 2 else None}
    return {"param_dtype": dtype, **vectors}


def averages(mesh: DeviceMesh, ranks: Ranks) -> bool:
    """True where a reduction that is asked for the mean gives it, and may be asked for it: a reduce-scatter by Gloo of
    torch 2.8 gave the sum, unsaid, and an allreduce between shard groups was refused."""
    if mesh.ndim > 1:
        return False
    own = torch.empty(1, device=ranks.device)
    dist.reduce_scatter_tensor(own, torch.ones(ranks.world_size, device=ranks.device), op=dist.ReduceOp.AVG)
    return bool(own.item() == 1)


SIXTEEN_BIT = {"fp16": torch.float16, "bf16": torch.bfloat16}


def shard_stage(stage: nn.Module, blocks: tuple[type[nn.Module], ...], mesh: DeviceMesh, trial: Trial) -> None:
    """Shard a stage of a pipeline, block by block and then what is left, inner before outer.

    Weights are gathered once a step: torch keeps what a backward gathered until the last micro-batch. Dropping it after
    a forward would gather it again for each, and save nothing where most is held. Gradients add up whole until then and
    are scattered together.
    """
    own = next(stage.parameters()).dtype
    policy = MixedPrecisionPolicy(
        **gathered_in(SIXTEEN_BIT.get(trial.precision)),
        reduce_dtype=SIXTEEN_BIT.get(trial.allreduce, own),
        cast_forward_inputs=False,
    )
    for unit in [module for module in reversed([*stage.modules()]) if module is stage or isinstance(module, blocks)]:
        wrapped = fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        wrapped.set_force_sum_reduction_for_comms(True)  # divided by all workers (averages)


def whole_gradients(parameters: Iterable[nn.Parameter], allreduce: str) -> int:
    """Bytes of the gradients of sharded parameters while they add up: whole, in the precision that they travel in."""
    return sum(p.numel() * SIXTEEN_BIT.get(allreduce, p.dtype).itemsize for p in parameters if p.requires_grad)


class SumOfParts:
    """A reduce-scatter for `set_custom_reduce_scatter`: each worker takes its part from all others, and sums them."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        """`op`: the sum, which is what FSDP2 asks for once it is told to (`set_force_sum_reduction_for_comms`)."""
        parts = torch.empty_like(input_tensor)
        dist.all_to_all_single(parts, input_tensor, group=group)
        torch.sum(parts.view(group.size(), -1), 0, out=output_tensor)
