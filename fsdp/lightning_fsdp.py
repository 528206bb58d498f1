"""Sharded data parallelism with Lightning: torch's first FullyShardedDataParallel behind Fabric.

    torchrun --standalone --nproc-per-node 2 fsdp/lightning_fsdp.py --model resnet18 --precision fp16 --allreduce fp16

A worker keeps 1/n of all parameters, gradients and optimiser state (Zhao et al., arXiv 2304.11277). Every block of the
model is a unit: gathered before its forward and again before its backward, freed after each, its gradients reduced
straight into shards (`--zero-stage 2`: kept from forward to backward). A diff against fsdp/lightning_ddp.py is a
strategy and its settings; the step is the same. Lightning refuses this strategy on a machine with no GPU. With
`--wrap none` the model is one unit, gathered whole (F24); with `--train-loop native` the Trainer trains.

`precision` is what weights are gathered, and compute, in; `allreduce` what gradients are reduced in: Lightning's own
setting couples the two, here it is taken apart. torch keeps BatchNorms fp32, in units of their own.

One step without accumulation hands over, for B parameters in blocks and R outside, each unit padded to a multiple of n,
with c and g bytes a value of computing and reducing (BatchNorms: 4):

    all_gather       c (2 B + R) bytes     stage 2: c (B + R); what is outside blocks stays until its backward
    reduce_scatter   g (B + R)
"""

import os
from dataclasses import replace

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import FSDPPrecision
from lightning.fabric.strategies import FSDPStrategy
from lightning.pytorch.strategies import FSDPStrategy as TrainersFSDP
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

from scaling_study import train, workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker import with_lightning
from scaling_study.worker.script import run

PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
WIRE = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "none": torch.float32}
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)  # gathered on rank 0's host


def join(trial: Trial) -> Ranks:
    # 1 join: by rank, world size and address, as torchrun sets them; Fabric finds the process group that is there
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: Fabric shards the model block by block; the optimiser's parameters become this worker's shards
    workload = workloads.load(trial, ranks)
    coupled = FSDPPrecision(PRECISION[trial.precision]).mixed_precision_config
    sharding = {
        "auto_wrap_policy": set(workload.blocks),
        "mixed_precision": replace(coupled, reduce_dtype=WIRE[trial.allreduce]),
        "sharding_strategy": "SHARD_GRAD_OP" if trial.zero_stage == 2 else "FULL_SHARD",
    }
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    where = {
        "accelerator": ranks.device.type,
        "devices": here,
        "num_nodes": ranks.world_size // here,
        "precision": PRECISION[trial.precision],
    }
    if trial.train_loop == "native":
        return with_lightning.build(trial, ranks, workload, where, TrainersFSDP(**sharding))
    layout = train.layout_of(workload.model)
    fabric = Fabric(**where, strategy=FSDPStrategy(**sharding))
    fabric.launch()
    model, optimizer = fabric.setup(workload.model, workload.optimizer(workload.model.parameters()))
    wrapped = model._forward_module  # what Fabric's own wrapper wraps
    units = len(FullyShardedDataParallel.fsdp_modules(wrapped))

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, last in workload.micro_batches(batch):
            with fabric.no_backward_sync(model, enabled=not last):  # gradients add up; the last backward reduces
                with phase("forward"):
                    loss = workload.share(model, part)
                with phase("backward"):
                    fabric.backward(loss)
            losses.append(loss.detach())
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return sum(losses)

    return Training(
        step,
        workload,
        optimizer,
        phase,
        wire,
        weights=lambda: get_model_state_dict(wrapped, options=WHOLE),
        backend={"units": units},
        forward=model,
        state=train.Distributed(wrapped, optimizer.optimizer),
        layout=layout,
        scaler=getattr(fabric.strategy.precision, "scaler", None),  # fp16's
    )


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("lightning_fsdp", join, build)
