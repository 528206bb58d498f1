"""Data parallelism with torch's own DistributedDataParallel: buckets of gradients are averaged while backward runs.

    torchrun --standalone --nproc-per-node 2 data_parallel/torch_ddp.py --model resnet18 --allreduce fp16

A diff against data_parallel/single.py shows all that DDP asks for: a process group and a wrapped model. Gradients are
gathered into buckets in the order in which backward makes them; a full bucket is reduced at once (Li et al., arXiv
2006.15704). A communication hook casts a bucket before it travels: the allreduce axis means the same as in Horovod.
What of the reduction backward does not hide is inside `backward`, which waits for it at its end. --allreduce powersgd1,
powersgd2 and powersgd4 send two thin matrices in the place of each gradient (scaling_study/worker/powersgd.py).

communication_bytes of one step: allreduce = parameters x 4 (fp32) or x 2 (fp16, bf16); by PowerSGD of rank r 4 x r x
(rows + columns) of each matrix, and vectors whole; nothing with one worker. With --buffers synced, torch's default,
also broadcast = the bytes of BatchNorm's buffers, which rank 0 sends before every forward. Training does not read them:
by default each worker keeps its own, as in the frameworks that cannot sync.
"""

from contextlib import nullcontext

import torch
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.nn.parallel import DistributedDataParallel

from scaling_study import train, workloads
from scaling_study.measure import Phase, Training, Wire, ddp_buckets
from scaling_study.ranks import Ranks, join_torch
from scaling_study.trial import Trial
from scaling_study.worker import powersgd
from scaling_study.worker.script import ddp_settings, run

# Without a hook DDP averages in the gradients' own precision, and a lone worker with itself.
HOOKS = {
    "none": debugging_hooks.noop_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}


def join(trial: Trial) -> Ranks:
    # 1 join: by rank, world size and address, as torchrun sets them
    return join_torch(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: DDP broadcasts rank 0's weights and reduces in backward
    workload = workloads.load(trial, ranks)
    model = DistributedDataParallel(workload.model, **ddp_settings(trial, ranks))
    if trial.allreduce in HOOKS:
        model.register_comm_hook(None, HOOKS[trial.allreduce])
    low_rank = powersgd.attached(model, trial)
    optimizer = workload.optimizer(model.parameters())

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=trial.precision == "fp16")

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, last in workload.micro_batches(batch):
            with nullcontext() if last else model.no_sync():  # gradients add up; the last backward reduces the sum
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
        step,
        workload,
        optimizer,
        phase,
        wire,
        held=lambda: {"buckets": ddp_buckets(model), **(low_rank.held() if low_rank else {})},
        state=train.Distributed(workload.model, optimizer, low_rank),
        scaler=scaler,
    )


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("torch_ddp", join, build)
