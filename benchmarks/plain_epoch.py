"""One epoch the way the published study ran it: a plain Horovod script with torchvision's DataLoader.     [torch]

    horovodrun -np 2 python -m benchmarks.plain_epoch --model resnet18 --batch 32 --fp16 --out FILE

ToTensor + Normalize, DistributedSampler with set_epoch, SGD, no warm-up and nothing measured but the end of every
step. `--loader memory` takes this project's batches instead, so that a step's time is the step's alone;
`--fraction` stops early. Each worker is pinned to the same share of the cores as a worker of a study here: a worker
has to be the same thing in both.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

from scaling_study.measure import surroundings
from scaling_study.measure.clock import Stopwatch
from scaling_study.ranks import Ranks, claim_cores, claim_device
from scaling_study.records.store import write_json
from scaling_study.settings import data_root
from scaling_study.trial import Trial
from scaling_study.workloads import cifar10
from scaling_study.workloads.images import image_data
from scaling_study.workloads.resnet_cifar10 import network

SEED = 42


def main() -> None:
    asked = arguments()
    trial = Trial(
        framework="horovod", model=asked.model, batch_per_worker=asked.batch, data="cifar10", seed=SEED,
        cores_per_worker=asked.cores_per_worker,
    )  # fmt: skip
    surroundings.fix_thresholds()
    claim_cores(trial)
    hvd.init()
    here = claim_device(trial, hvd.local_rank())
    torch.manual_seed(SEED)
    model = network(asked.model).to(here)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
    compression = hvd.Compression.fp16 if asked.fp16 else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    epoch_steps, batches = memory(trial, here) if asked.loader == "memory" else published(asked)
    steps = min(epoch_steps, max(asked.at_least_steps, math.ceil(asked.fraction * epoch_steps)))
    model.train()
    watch = Stopwatch(here)
    watch.start()
    samples = 0
    for images, labels in islice(batches, steps):
        images, labels = images.to(here), labels.to(here)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        watch.lap()
        samples += len(labels)
    step_seconds = watch.seconds()
    if hvd.rank() == 0:
        report = {
            "step_seconds": step_seconds, "epoch_steps": epoch_steps,
            "samples_per_step": samples * hvd.size() / steps, "loader": asked.loader,
        }  # fmt: skip
        write_json(asked.out, report)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=32, help="samples of one worker in one step")
    parser.add_argument("--fp16", action="store_true", help="gradients are reduced in fp16")
    parser.add_argument("--loader", default="dataloader", choices=("dataloader", "memory"))
    parser.add_argument(
        "--loader-processes",
        type=int,
        default=0,
        help="0: in the worker itself, as in Horovod's MNIST example on a CPU",
    )
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the epoch's steps that is run")
    parser.add_argument("--at-least-steps", type=int, default=1)
    parser.add_argument("--cores-per-worker", type=int, default=None)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def published(asked: argparse.Namespace) -> tuple[int, Iterable[Any]]:
    """(steps of an epoch, its batches); the last one is short, as a DataLoader leaves it."""
    normalised = transforms.Compose([transforms.ToTensor(), transforms.Normalize(cifar10.MEAN, cifar10.STD)])
    dataset = datasets.CIFAR10(str(data_root()), train=True, transform=normalised)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank(), seed=SEED)
    sampler.set_epoch(0)
    loader = DataLoader(dataset, batch_size=asked.batch, sampler=sampler, num_workers=asked.loader_processes)
    return len(loader), loader


def memory(trial: Trial, here: torch.device) -> tuple[int, Iterable[Any]]:
    """The same with this project's batches."""
    batches = image_data(trial, Ranks(hvd.rank(), hvd.size(), device=here), lambda batch: batch).feed
    return math.ceil(cifar10.SAMPLES / hvd.size() / trial.batch_per_worker), batches


if __name__ == "__main__":
    main()
