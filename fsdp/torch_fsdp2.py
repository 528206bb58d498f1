"""Sharded data parallelism with torch's FSDP2: every worker keeps 1/n of each weight and gathers it only to use it.

    torchrun --standalone --nproc-per-node 2 fsdp/torch_fsdp2.py --model resnet18 --zero-stage 3 --allreduce bf16

A diff against data_parallel/torch_ddp.py shows all that FSDP2 asks for: `fully_shard` on each block of the model, then
on what is left. Such a unit's weights are all-gathered before it computes and dropped after; in backward its gradients
are reduce-scattered, so that a worker gets the mean of its own shard only, and steps that (ZeRO: Rajbhandari et al.,
arXiv 1910.02054; FSDP: Zhao et al., arXiv 2304.11277). On a GPU the next unit is on its way meanwhile. As one unit
(--wrap none) the model is gathered whole, with nothing to overlap (F24): the record says how many units there are.

--zero-stage 3 (also if left out) drops a unit's weights after its forward and gathers them again for its backward; 2
keeps them in between. The outermost unit's are kept: backward needs them at once (torch's advice and default); with
--tuned-for memory it drops them too. Between steps all hold shards only. One step of P parameters, R of them in the
outermost unit, with each tensor's first dimension padded to a multiple of n, hands over

    all_gather        P x 4 bytes in every micro-batch, at stage 3 (2 P - R) x 4; tuned for memory 2 P x 4
    reduce_scatter    P x 4 once; with --allreduce fp16 or bf16 P x 2. At stage 3 this saves 1/6 of the sum, not half

A block that is used L times (ALBERT) is gathered 2 L times at stage 3, and reduced once. In 16-bit compute matrices are
gathered in 16 bits too; vectors (normalisation, biases) in fp32.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from scaling_study import train, workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import run

SIXTEEN_BIT = {"fp16": torch.float16, "bf16": torch.bfloat16}
CASTS_MATRICES_ONLY = hasattr(MixedPrecisionPolicy, "param_dtype_override_fn")
GATHERED_IN_FP32 = "weights are gathered in fp32: before torch 2.15 FSDP2 casts all of them or none"


def join(trial: Trial) -> Ranks:
    # 1 join: by rank, world size and address, as torchrun sets them
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: every parameter becomes a DTensor, of which the optimiser sees this worker's shard
    workload = workloads.load(trial, ranks)
    model = workload.model
    units = shard(model, workload.blocks, trial, ranks)
    if trial.precision in SIXTEEN_BIT and not CASTS_MATRICES_ONLY:
        workload.notes.append(GATHERED_IN_FP32)
    optimizer = workload.optimizer(model.parameters())

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=trial.precision == "fp16")

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, last in workload.micro_batches(batch):
            model.set_requires_gradient_sync(last)  # whole gradients add up; the last backward scatters the sum
            with phase("forward"):
                loss = workload.share(model, part)
            with phase("backward"):
                scaler.scale(loss).backward()
            losses.append(loss.detach())
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return sum(losses)

    return Training(
        step, workload, optimizer, phase, wire, weights=lambda: whole(model), backend={"units": units},
        held=lambda: {"buckets": wire.largest["reduce_scatter"]},  # one unit's gradients, copied together
        state=train.Distributed(model, optimizer), scaler=scaler,
    )  # fmt: skip


def shard(model: nn.Module, blocks: tuple[type[nn.Module], ...], trial: Trial, ranks: Ranks) -> int:
    """Wrap every block and then the model, inner before outer; how many units that makes.

    `precision` means what it does elsewhere: autocast, in the workload's loss, chooses what is computed in 16 bits. A
    matrix cast before it is gathered is rounded as autocast would do after. But half as much travels, and autograd
    keeps no 16-bit copy of what was dropped. Vectors stay fp32, as BatchNorm's statistics are: torch mixes them with
    no other weights.
    """
    own = next(model.parameters()).dtype  # fp32, or fp64: reducing that in fp32 would be a compression
    policy = MixedPrecisionPolicy(
        **gathered_in(SIXTEEN_BIT.get(trial.precision)),
        reduce_dtype=SIXTEEN_BIT.get(trial.allreduce, own),
        cast_forward_inputs=False,
    )
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    units = [module for module in reversed([*model.modules()]) if module is model or isinstance(module, blocks)]
    drop = False if trial.zero_stage == 2 else True if trial.tuned_for == "memory" else None  # None: all but the root's
    averaged = averages(ranks)
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=drop)
        if not averaged:
            unit.set_force_sum_reduction_for_comms(True)
    return len(units)


def gathered_in(dtype: torch.dtype | None) -> dict:
    """MixedPrecisionPolicy's keywords that gather matrices in `dtype` and vectors as they are, where this torch can."""
    if dtype is None or not CASTS_MATRICES_ONLY:
        return {}
    vectors = {"param_dtype_override_fn": lambda parameter: parameter.dtype if parameter.ndim < 2 else None}
    return {"param_dtype": dtype, **vectors}


def averages(ranks: Ranks) -> bool:
    """Whether a reduce-scatter that is asked for the mean gives it: by Gloo of torch 2.8 it is the sum, unsaid."""
    own = torch.empty(1, device=ranks.device)
    dist.reduce_scatter_tensor(own, torch.ones(ranks.world_size, device=ranks.device), op=dist.ReduceOp.AVG)
    return own.item() == 1


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """All weights and buffers on rank 0, nothing on the others; called by all."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("torch_fsdp2", join, build)
