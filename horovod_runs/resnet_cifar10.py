"""Data parallelism with Horovod: gradients are averaged by an allreduce while backward still runs.

    horovodrun -np 2 python horovod_runs/resnet_cifar10.py --model resnet18 --batch-per-worker 32 --allreduce fp16

A diff against data_parallel/single.py shows all that Horovod asks for: init, a broadcast of the weights, a wrapped
optimiser. The gradients' reduction starts in backward, tensor by tensor, fused by Horovod's background thread
(Sergeev and Del Balso, arXiv 1802.05799); what of it backward does not hide is the phase `communication`.
"""

import horovod.torch as hvd
import torch

from scaling_study import workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.worker.script import run
from scaling_study.worker.with_horovod import compression, dense, fusion_bytes, join_horovod


def join(trial: Trial) -> Ranks:
    # 1 join: hvd.init() with the trial's knobs, once this worker's cores are claimed
    return join_horovod(trial)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: rank 0's weights everywhere, and an optimiser that reduces before it steps
    workload = workloads.load(trial, ranks)
    model = workload.model
    hvd.broadcast_parameters(dense(model.state_dict()), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        workload.optimizer(model.parameters()),
        model.named_parameters(),
        compression=compression(trial),
        backward_passes_per_step=trial.accumulation,  # hooks reduce in the last micro-batch's backward
    )

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    wire.watch(hvd.optimizer, "allreduce_async_", "allreduce", done=hvd.poll)
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=trial.precision == "fp16")

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, _ in workload.micro_batches(batch):
            with phase("forward"):
                loss = workload.share(model, part)
            with phase("backward"):
                scaler.scale(loss).backward()
            losses.append(loss.detach())
        with phase("communication"):
            optimizer.synchronize()
        with phase("optimizer"), optimizer.skip_synchronize():
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
        held=lambda: {"buckets": min(fusion_bytes(), wire.bytes["allreduce"])},  # what gradients fill of the buffer
        scaler=scaler,
    )


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("horovod", join, build)
