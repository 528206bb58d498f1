"""A workload of one's own: a small network learns the mean of eight sines.

All that a study needs to train and measure a model of yours is in `load`. The data are made here, from a seed;
yours may come from anywhere, as long as a sample has a number and the same number is always the same sample.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from scaling_study.ranks import Ranks
from scaling_study.trial import Trial
from scaling_study.workloads.feed import Batch, Feed, batches_of_indices, steps_per_epoch
from scaling_study.workloads.workload import Workload, autocast

SAMPLES, INPUTS, WIDTH = 4_096, 8, 64
LEARNING_RATE = 0.05


def load(trial: Trial, ranks: Ranks) -> Workload:
    """Model and data of this rank. Weights are drawn from torch's generator, which is seeded before the call."""
    model = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).to(ranks.device)
    rate = trial.learning_rate or LEARNING_RATE * ranks.world_size
    dtype = torch.float64 if trial.precision == "fp64" else torch.float32

    # The data: the same on every rank, on the device once.
    inputs = torch.randn(SAMPLES, INPUTS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.sin(inputs).mean(dim=1, keepdim=True)
    inputs, targets = inputs.to(ranks.device, dtype), targets.to(ranks.device, dtype)

    def fetch(ids: torch.Tensor) -> Batch:
        """(batch,) sample numbers on the host -> (batch, INPUTS) and (batch, 1) on the device."""
        chosen = ids.to(ranks.device)
        return inputs[chosen], targets[chosen]

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        """The mean over the batch. The model is an argument: by now a framework may have wrapped it."""
        x, y = batch
        with autocast(ranks.device, trial.precision):
            return F.mse_loss(model(x), y)

    # Which samples this rank reads: its own shard, in a new order each epoch.
    order = batches_of_indices(SAMPLES, trial.seed, ranks.rank, ranks.world_size, trial.batch_per_worker)
    return Workload(
        model=model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
        batches=Feed(order, fetch),
        samples_per_step=trial.batch_per_worker,
        steps_per_epoch=steps_per_epoch(SAMPLES, ranks.world_size, trial.batch_per_worker),
        data_source="sine",
        sample="point",
        blocks=(nn.Linear,),
    )
