"""Tensor parallelism with torch's DTensor: the workers of a group share every matrix, and read one batch together.

    torchrun --standalone --nproc-per-node 2 tensor/torch_tp.py --model llama_tiny --sequence-parallel --loss-parallel

A diff against fsdp/torch_fsdp2.py shows all that it asks for: a mesh of two dimensions, one batch a group, and a plan
of which matrix is split how (scaling_study/stages/matrices.py), in place of whole weights that are gathered. Weights
stay where they are, and activations travel in the middle of every block (Shoeybi et al., arXiv 1909.08053): all wait
for them. With more workers than --tensor-parallel groups are replicas, between which FSDP2 shards what each holds.
DistributedDataParallel refuses: it cannot broadcast a DTensor.

communication_bytes of one step of L blocks, b sequences of l tokens, width d, V tokens known, e bytes a value:

    allreduce     (4 L + 2) b l d e: two sums a block and the embedding's, and as many of gradients
    all_gather    b l V e, the scores; with --loss-parallel in its place allreduce 3 b l e, a maximum and two sums

With --sequence-parallel each sum of the first line is a reduce_scatter and an all_gather of b l d e. Norms see a part
of the tokens then: allreduce (2 L + 1) d e puts their gradients together. With replicas also, of W weights on a worker,
R of them outside blocks: all_gather (2 W - R) e, reduce_scatter W e, with --allreduce fp16 or bf16 W x 2.
"""

import copy
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import loss_parallel

from scaling_study import train, workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.stages.matrices import norm_of, put_together, split_matrices
from scaling_study.stages.stage import own
from scaling_study.trial import Trial
from scaling_study.worker.script import run

SIXTEEN_BIT = {"fp16": torch.float16, "bf16": torch.bfloat16}


def join(trial: Trial) -> Ranks:
    # 1 join: by rank, world size and address, as torchrun sets them
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: a group reads one batch and splits every matrix; FSDP2 shards the parts between groups
    replicas = trial.data_parallel
    mesh = init_device_mesh(
        ranks.device.type, (replicas, ranks.world_size // replicas), mesh_dim_names=("replica", "tensor")
    )
    replica, part = mesh.get_coordinate()
    workload = workloads.load(trial, replace(ranks, rank=replica, world_size=replicas))
    model = workload.model
    unsplit = copy.deepcopy(model) if trial.trained else None  # to be evaluated by each rank for itself
    split_matrices(model, mesh["tensor"], trial.sequence_parallel, trial.loss_parallel)
    kept = shard(model, workload.blocks, mesh["replica"], trial) if replicas > 1 else {"buckets": 0}
    optimizer = workload.optimizer(model.parameters())
    if part > 0:
        workload.samples_per_step, workload.tokens = 0, None  # samples count once, where the loss is told

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()

    def step(batch: workloads.Batch) -> torch.Tensor | None:
        losses = []
        for micro_batch, last in workload.micro_batches(batch):
            if replicas > 1:
                model.set_requires_gradient_sync(last)
            with loss_parallel() if trial.loss_parallel else nullcontext():
                with phase("forward"):
                    loss = workload.share(model, micro_batch)
                with phase("backward"):
                    loss.backward()
            losses.append(own(loss.detach()))
        with phase("communication"):
            put_together(model.parameters())
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return None if part else sum(losses)

    def whole() -> nn.Module:
        unsplit.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
        return unsplit

    return Training(
        step, workload, optimizer, phase, wire, weights=lambda: gathered(model), whole=whole if unsplit else None,
        held=lambda: kept,
        norm=norm_of, state=train.Distributed(model, optimizer),
    )  # fmt: skip


def shard(model: nn.Module, blocks: tuple[type[nn.Module], ...], mesh: DeviceMesh, trial: Trial) -> dict[str, int]:
    """Shard what this worker holds over the replicas, block by block and then what is left, inner before outer.

    Bytes of gradients: of the largest such unit, which are copied together; and of all while those of several
    micro-batches add up, which are whole until the last.
    """
    units = [module for module in reversed([*model.modules()]) if module is model or isinstance(module, blocks)]
    *sizes, everything = (sum(own(p).nbytes for p in unit.parameters()) for unit in units)
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=SIXTEEN_BIT.get(trial.allreduce)))
    smaller = 2 if trial.allreduce in SIXTEEN_BIT else 1
    whole = {"gradients": everything // smaller} if trial.accumulation > 1 else {}
    return {"buckets": max(*sizes, everything - sum(sizes)) // smaller, **whole}


def gathered(model: nn.Module) -> dict[str, torch.Tensor]:
    """All weights on rank 0, nothing on the others; called by all."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("torch_tp", join, build)
