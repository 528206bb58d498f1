"""Pipeline parallelism with FairScale's Pipe: one process, a thread a device, GPipe's schedule.

    python pipeline/fairscale_pipe.py --model transformer_lm_deep --workers 4 --micro-batches 8

Pipe is torchgpipe (Kim et al., arXiv 2004.09910): all micro-batches go forward, then autograd runs them back through
the same stages, with streams for the copies between devices. It takes an nn.Sequential, the layers of each device, and
the number of chunks. Here no activation is computed twice (checkpoint="never"), as in the siblings.

On a CPU every stage has the same device and so the same thread: it trains rightly, and nothing runs side by side. What
a stage does when cannot be seen from outside, so there is no timeline, and no bubble, of it.
"""

import warnings

import torch
from fairscale.nn.pipe import Pipe
from torch import nn

from scaling_study import workloads
from scaling_study.measure import Phase, Training, Wire
from scaling_study.ranks import Ranks, claim_cores, claim_device, wants_gpu
from scaling_study.stages import cut, micro_batches
from scaling_study.trial import Trial
from scaling_study.worker.script import run


def join(trial: Trial) -> Ranks:
    # 1 join: one process has no peers; it drives the devices of all its stages
    cores = claim_cores(trial)
    return Ranks(device=claim_device(trial, 0), cores=cores, further=tuple(of_stages(trial)[1:]))


def build(trial: Trial, ranks: Ranks) -> Training:
    # 2 build, then cut: Pipe moves each stage to its device
    devices = of_stages(trial)
    workload = workloads.load(trial, ranks)
    workload.notes += micro_batches(workload, trial.micro_batches)
    model = cut(workload, trial, ranks.device, ranks.agree)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it names a successor that torch has removed
        pipe = Pipe(
            nn.Sequential(*model.stages.values()),
            [1] * len(devices),
            devices=devices,
            chunks=trial.micro_batches,
            checkpoint="never",
        )
    # evaluated outputs go to where the labels are
    pipe.register_forward_hook(lambda pipe, _, output: output if pipe.training else output.to(ranks.device))
    optimizer = workload.optimizer(pipe.parameters())

    # 3 one optimiser step
    phase, wire = Phase(*ranks.devices), Wire()

    def step(batch: workloads.Batch) -> torch.Tensor:
        with phase("forward"):
            output = pipe(model.inputs(batch))
            loss = model.loss(output, model.target(batch).to(output.device))
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Training(step, workload, optimizer, phase, wire, weights=model.weights, stages=model.about, forward=pipe)


def of_stages(trial: Trial) -> list[torch.device]:
    """The device of each stage. Raises SystemExit, in one line, where there are fewer GPUs than stages."""
    if not wants_gpu(trial):
        return [torch.device("cpu")] * trial.workers
    if torch.cuda.device_count() < trial.workers:
        raise SystemExit(f"--workers {trial.workers}: one GPU a stage, and torch sees {torch.cuda.device_count()}")
    return [torch.device("cuda", index) for index in range(trial.workers)]


if __name__ == "__main__":
    # 4 measure: by the clock that all frameworks share
    run("fairscale_pipe", join, build)
