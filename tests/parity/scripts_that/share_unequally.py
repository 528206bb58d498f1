"""Rank 0 takes ten batches more of every epoch than its share, so that somebody waits at every epoch's end (F9)."""

from itertools import count

import torch
from train_rightly import train_by

from scaling_study import workloads
from scaling_study.workloads.cifar10 import SAMPLES


def unequal(trial, ranks):
    workload, batch = workloads.load(trial, ranks), trial.batch_per_worker
    split = SAMPLES // 2 // batch * batch + (10 * batch)

    def order():
        for epoch in count():
            every = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
            mine = every[:split] if ranks.rank == 0 else every[split:]
            yield from mine[: len(mine) // batch * batch].split(batch)

    workload.batches.order = order()
    workload.steps_per_epoch = (split if ranks.rank == 0 else SAMPLES - split) // batch
    return workload


train_by(load=unequal)
