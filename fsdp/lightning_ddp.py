"""Data parallelism with Lightning: torch's DistributedDataParallel behind Fabric, Lightning's layer under the Trainer.

    torchrun --standalone --nproc-per-node 2 fsdp/lightning_ddp.py --model resnet18 --allreduce bf16

The Trainer owns its loop; Fabric leaves it to the script, so that what is timed here is the same step as everywhere.
With --train-loop native the Trainer trains instead (scaling_study/worker/with_lightning.py).
It wraps model and optimiser (`setup`), computes forward in the precision it is given, and scales fp16's loss itself.
What runs is DDP: buckets of gradients averaged by an allreduce while backward runs (Li et al., arXiv 2006.15704). A
diff against data_parallel/torch_ddp.py shows all that Lightning asks for.

Fabric has no setting for a communication hook, and the Trainer ignores its `ddp_comm_hook` on a CPU without a word: the
hook is registered on the wrapped model, where it works on every device.

One step hands over, for P parameters:

    allreduce   4 P bytes (fp16, bf16: 2 P)
    broadcast   BatchNorm's buffers before forward, with --buffers synced (the default of torch and Lightning)
"""

import os

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch.strategies import DDPStrategy as TrainersDDP
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from scaling_study import workloads
from scaling_study.measure import Phase, Training, Wire, ddp_buckets
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker import with_lightning
from scaling_study.worker.script import ddp_settings, run

# 32-true casts nothing, so it is right for fp64 too; 64-true hands the output back rounded to fp32.
PRECISION = {"fp32": "32-true", "fp64": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
COMPRESSION = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


class CompressedDDP(DDPStrategy):
    """Lightning's DDP, whose gradients travel in another precision."""

    def __init__(self, allreduce: str, **settings: float) -> None:
        super().__init__(**settings)
        self.allreduce = allreduce

    def setup_module(self, module: nn.Module) -> nn.Module:
        model = super().setup_module(module)
        if self.allreduce in COMPRESSION:
            model.register_comm_hook(None, COMPRESSION[self.allreduce])
        return model


def join(trial: Trial) -> Ranks:
    # 1 join: by rank, world size and address, as torchrun sets them; Fabric finds the process group that is there
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: Fabric moves the model, wraps it in DDP, and casts in its forward
    if trial.precision == "fp16" and ranks.device.type == "cpu":
        raise SystemExit("--precision fp16: on a CPU Lightning computes in bf16 instead; ask for bf16")
    workload = workloads.load(trial, ranks)
    here, ddp = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), ddp_settings(trial, ranks)
    where = {
        "accelerator": ranks.device.type,
        "devices": here,
        "num_nodes": ranks.world_size // here,
        "precision": PRECISION[trial.precision],
    }
    if trial.train_loop == "native":
        return with_lightning.build(trial, ranks, workload, where, TrainersDDP(**ddp), COMPRESSION.get(trial.allreduce))
    fabric = Fabric(**where, strategy=CompressedDDP(trial.allreduce, **ddp))
    fabric.launch()
    model, optimizer = fabric.setup(workload.model, workload.optimizer(workload.model.parameters()))

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

    wrapped = model._forward_module  # what Fabric's own wrapper wraps: DDP
    return Training(
        step,
        workload,
        optimizer,
        phase,
        wire,
        held=lambda: {"buckets": ddp_buckets(wrapped)},
        scaler=getattr(fabric.strategy.precision, "scaler", None),  # fp16's
    )


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("lightning_ddp", join, build)
