"""Sharded data parallelism with torch's FSDP2: every worker keeps 1/n of each weight and gathers it only to use it.

    torchrun --standalone --nproc-per-node 2 fsdp/torch_fsdp2.py --model resnet18 --zero-stage 3 --allreduce bf16

A diff against data_parallel/torch_ddp.py shows all that FSDP2 asks for: `fully_shard` on each block of the model, then
on what is left. Such a unit's weights are all-gathered before it computes and dropped after; in backward its gradients
are reduce-scattered, so that a worker gets the mean of its own shard only, and steps that (ZeRO: Rajbhandari et al.,
arXiv 1910.02054; FSDP: Zhao et al., 2304.11277). On a GPU the next unit is on its way meanwhile. As one unit (--wrap
none) the model is gathered whole, with nothing to overlap (F24): the record says how many units there are.

--zero-stage 3 (also if left out) drops a unit's weights after its forward and gathers them again for its backward; 2
keeps them in between. The outermost unit's are kept: backward needs them at once (torch's advice and default); with
--tuned-for memory it drops them too. Between steps all hold shards only. --shard-group s shards within groups of s
workers and averages gradients between them (hybrid sharding): each group holds a copy of the model. Left out, s is n.
One step of P parameters, R of them in the outermost unit, each tensor's first dimension padded to a multiple of s:

    all_gather        in a group: P x 4 bytes in every micro-batch, at stage 3 (2 P - R) x 4; tuned for memory 2 P x 4
    reduce_scatter    in a group: P x 4 once; with --allreduce fp16 or bf16 P x 2: at stage 3 1/6 of the sum is saved
    allreduce         between groups, of each shard with its copies: P x 4 / s once, or P x 2 / s; none where s is n

Gloo reduce-scatters by an allreduce of which a worker keeps its part. --reduce-scatter all_to_all sends each worker its
part alone, to be summed there: half of that, so that a step tuned for memory sends three units in place of four. A
block that is used L times (ALBERT) is gathered 2 L times at stage 3, and reduced once. In 16-bit compute matrices are
gathered in 16 bits too; vectors (normalisation, biases) in fp32.
"""

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from scaling_study import train, workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker.script import run
from scaling_study.worker.with_fsdp2 import (
    CASTS_MATRICES_ONLY,
    GATHERED_IN_FP32,
    SIXTEEN_BIT,
    SumOfParts,
    averages,
    gathered_in,
    mesh_of,
    whole_gradients,
)


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
    phase, wire = Phase(ranks.device), Wire("all_to_all")
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

    whole_ones = {"gradients": whole_gradients(model.parameters(), trial.allreduce)} if trial.accumulation > 1 else {}

    def buckets() -> dict:  # one unit's gradients, copied together; and once more where all workers' parts are summed
        return {"buckets": wire.largest["reduce_scatter"] + 2 * wire.largest["all_to_all"], **whole_ones}

    return Training(
        step, workload, optimizer, phase, wire, weights=lambda: whole(model), backend={"units": units}, held=buckets,
        state=train.Distributed(model, optimizer), scaler=scaler,
    )  # fmt: skip


def shard(model: nn.Module, blocks: tuple[type[nn.Module], ...], trial: Trial, ranks: Ranks) -> int:
    """Wrap every block and then the model, inner before outer; how many units that makes.

    `precision` means what it does elsewhere: autocast, in the workload's loss, chooses what is computed in 16 bits. A
    matrix cast before it is gathered is rounded as autocast would do after, but half as much travels. Vectors stay
    fp32, as BatchNorm's statistics are: torch mixes them with no other weights.
    """
    own = next(model.parameters()).dtype  # fp32, or fp64: reducing that in fp32 would be a compression
    policy = MixedPrecisionPolicy(
        **gathered_in(SIXTEEN_BIT.get(trial.precision)),
        reduce_dtype=SIXTEEN_BIT.get(trial.allreduce, own),
        cast_forward_inputs=False,
    )
    mesh = mesh_of(trial, ranks)
    units = [module for module in reversed([*model.modules()]) if module is model or isinstance(module, blocks)]
    drop = False if trial.zero_stage == 2 else True if trial.tuned_for == "memory" else None  # None: all but the root's
    by_parts = trial.reduce_scatter == "all_to_all"
    averaged = not by_parts and averages(mesh, ranks)
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=drop)
        if not averaged:
            unit.set_force_sum_reduction_for_comms(True)  # divided by all workers
        if by_parts:
            unit.set_custom_reduce_scatter(SumOfParts())
    return len(units)


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """All weights and buffers on rank 0, nothing on the others; called by all."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("torch_fsdp2", join, build)
