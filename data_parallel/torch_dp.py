"""One process, several GPUs: torch's DataParallel splits each batch, and adds the gradients up on the first GPU.

    python data_parallel/torch_dp.py --workers 2 --model resnet18 --batch-per-worker 32

The oldest form of data parallelism in torch, and the one that DistributedDataParallel was made to replace (Li et al.,
arXiv 2006.15704). In every step the weights are copied to all GPUs, the batch is scattered over them, one Python thread
each runs forward, and the outputs are gathered on the first GPU, which computes the loss; backward goes the same ways
back. One interpreter drives all of it, nothing overlaps, and the first GPU holds more than the others.

Each step copies 4 bytes a parameter to every further GPU, and as many come back as gradients. Those copies are CUDA's
own and pass no collective that could be counted: allreduce_bytes is unknown.
"""

from dataclasses import replace

import torch
from torch import nn

from scaling_study import workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, claim_cores, claim_device, wants_gpu
from scaling_study.trial import Trial
from scaling_study.worker.script import run
from scaling_study.workloads.workload import autocast


def join(trial: Trial) -> Ranks:
    # 1 join: one process has no peers; it drives the GPUs of all its workers
    require_gpus(trial)
    cores = claim_cores(trial)
    device = claim_device(trial, 0)
    return Ranks(
        device=device, cores=cores, further=tuple(torch.device(device.type, i) for i in range(1, trial.workers))
    )


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: the whole batch is read here, and every GPU takes its part of it
    workload = workloads.load(replace(trial, batch_per_worker=trial.global_batch), ranks)
    model = nn.DataParallel(InPrecision(workload.model, trial.precision), device_ids=list(range(trial.workers)))
    optimizer = workload.optimizer(model.parameters())
    if trial.learning_rate is None:  # the workload's own is that of one process; it grows with the workers
        for group in optimizer.param_groups:
            group["lr"] *= trial.workers

    # 3 one optimiser step
    phase, wire = Phase(*ranks.devices), Wire()
    wire.unknown = trial.workers > 1
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=trial.precision == "fp16")

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, _ in workload.micro_batches(batch):
            with phase("forward"):
                loss = workload.share(model, part)  # the mean over the whole batch, on the first GPU
            with phase("backward"):
                scaler.scale(loss).backward()
            losses.append(loss.detach())
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return sum(losses)

    return Training(step, workload, optimizer, phase, wire)


class InPrecision(nn.Module):
    """The model in its own autocast: a replica's thread would take torch's default, fp16, whatever was asked for."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        super().__init__()
        self.model, self.precision = model, precision

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        with autocast(torch.device("cuda"), self.precision):
            return self.model(*inputs, **named)


def require_gpus(trial: Trial) -> None:
    """Raises SystemExit, in one line, where there are not as many GPUs as workers: DataParallel would do without."""
    gpus = torch.cuda.device_count() if wants_gpu(trial) else 0
    if gpus < trial.workers:
        why = "torch's DataParallel splits a batch over GPUs; without one it is a plain pass-through"
        raise SystemExit(f"{why} (--workers {trial.workers} on {gpus} GPUs)")


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("torch_dp", join, build)
