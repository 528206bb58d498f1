"""One process, plain PyTorch: the baseline that every other framework is compared with.

    python data_parallel/single.py --model resnet18 --batch-per-worker 32

Its siblings keep the same four movements in the same order, so a diff of two files is exactly the
difference between two frameworks. This one against horovod_runs/resnet_cifar10.py shows all that Horovod asks for.
"""

import torch

from scaling_study import workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, claim_cores, claim_device
from scaling_study.trial import Trial
from scaling_study.worker.script import run


def join(trial: Trial) -> Ranks:
    # 1 join: one process has no peers
    cores = claim_cores(trial)
    return Ranks(device=claim_device(trial), cores=cores)


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then wrap: the model as it is
    workload = workloads.load(trial, ranks)
    model = workload.model
    optimizer = workload.optimizer(model.parameters())

    # 3 one optimiser step
    phase, wire = Phase(ranks.device), Wire()
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=trial.precision == "fp16")

    def step(batch: workloads.Batch) -> torch.Tensor:
        losses = []
        for part, _ in workload.micro_batches(batch):
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

    return Training(step, workload, optimizer, phase, wire, scaler=scaler)


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("single", join, build)
